"""Views: what a crop, mirror, scaling or shifted grid counts is exactly what the photo holds there."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from libra_gym.counts import KERNELS, HeadDensity, patch_counts
from libra_gym.datasets.views import View, full, paper_crops, qnrf, qnrf_crops
from libra_gym.errors import LibraError

SIZE = 203, 301
NAMES = pytest.mark.parametrize("name", KERNELS)
SIZES = st.tuples(st.integers(2, 300), st.integers(2, 300))


def crowd(size: tuple[int, int] = SIZE, number: int = 150) -> NDArray[np.float32]:
    return np.random.default_rng(1).uniform(0, size[::-1], (number, 2)).astype(np.float32)


@NAMES
def test_the_full_view_is_the_photo(name: str) -> None:
    counts = full(SIZE).patch_counts(crowd(), SIZE, KERNELS[name])
    np.testing.assert_array_equal(counts, patch_counts(crowd(), SIZE, KERNELS[name]))


@NAMES
def test_a_mirrored_view_counts_the_mirrored_dots(name: str) -> None:
    """301 is no multiple of 32, so the mirrored patches are other patches, not the same ones in reverse order."""
    mirrored = crowd() * (-1, 1) + (SIZE[1], 0)
    counts = full(SIZE, mirror=True).patch_counts(crowd(), SIZE, KERNELS[name])
    np.testing.assert_allclose(counts, patch_counts(mirrored, SIZE, KERNELS[name]), atol=1e-4)
    assert not np.allclose(counts, patch_counts(crowd(), SIZE, KERNELS[name])[:, ::-1], atol=0.1)


@pytest.mark.parametrize("mirror", [False, True])
def test_a_crop_counts_its_part_of_the_density_map(mirror: bool) -> None:
    """σ is that of the whole photo, and heads beyond the crop's border leave their share in it."""
    view = View(x=37, y=50, width=128, height=96, mirror=mirror)
    kernel = KERNELS["paper"]
    part = patch_counts(crowd(), SIZE, kernel, patch=1)[50:146, 37:165]
    part = part[:, ::-1] if mirror else part
    expected = part.reshape(3, 32, 4, 32).sum(axis=(1, 3))
    np.testing.assert_allclose(view.patch_counts(crowd(), SIZE, kernel), expected, atol=1e-4)
    assert view.grid == (3, 4)


@NAMES
@pytest.mark.parametrize("mirror", [False, True])
def test_crops_that_tile_a_photo_hold_its_people(name: str, mirror: bool) -> None:
    density = HeadDensity(crowd(), SIZE, KERNELS[name])
    tiles = [View(x, y, w, h, mirror=mirror) for x, w in ((0, 99), (99, 202)) for y, h in ((0, 70), (70, 133))]
    total = sum(float(tile.integrate(density).sum()) for tile in tiles)
    assert total == pytest.approx(float(full(SIZE).integrate(density).sum()), abs=1e-3)


@pytest.mark.parametrize("scale", [0.5, 0.77, 1.6])
def test_a_scaled_view_has_the_same_people(scale: float) -> None:
    view = full(SIZE, scale=scale)
    counts = view.patch_counts(crowd(), SIZE, KERNELS["capped"])
    assert counts.shape == view.grid
    assert counts.sum() == pytest.approx(150, abs=1e-3)


def test_a_shifted_grid_counts_from_its_offset() -> None:
    counts = View(16, 8, SIZE[1] - 16, SIZE[0] - 8).patch_counts(crowd(), SIZE, KERNELS["points"])
    x, y = crowd().T
    assert counts[0, 0] == ((x >= 16) & (x < 48) & (y >= 8) & (y < 40)).sum()
    assert counts.sum() == ((x >= 16) & (y >= 8)).sum()


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_dots_stay_on_their_pixels(mirror: bool, scale: float) -> None:
    image = np.zeros((60, 80, 3), np.uint8)
    image[20, 33] = 255
    view = View(x=int(10 * scale), y=int(5 * scale), width=51, height=41, scale=scale, mirror=mirror)
    cut = view.apply_image(image)
    (point,) = view.apply_points([(33.5, 20.5), (1, 1)], (60, 80))
    assert cut.shape == (41, 51, 3)
    assert cut.flags.c_contiguous
    assert np.argwhere(cut[..., 0] > 0).mean(axis=0) + 0.5 == pytest.approx(point[::-1])


@settings(max_examples=40, deadline=None)
@given(size=SIZES, seed=st.integers(0, 100))
def test_the_paper_crops_nine_half_size_views_and_mirrors_them(size: tuple[int, int], seed: int) -> None:
    views = paper_crops(size, seed)
    h, w = size[0] // 2, size[1] // 2
    assert len(views) == 18
    assert {view.size for view in views} == {(h, w)}
    assert {(view.x, view.y) for view in views[:4]} == {(x, y) for x in (0, size[1] - w) for y in (0, size[0] - h)}
    assert [view.mirrored() for view in views[:9]] == views[9:]
    assert views == paper_crops(size, seed)
    for view in views:
        view.edges(size)  # lies in the photo


def test_photos_can_have_random_crops_of_their_own() -> None:
    assert paper_crops((400, 600), (0, 1)) != paper_crops((400, 600), (0, 2))
    assert paper_crops((400, 600), (0, 1), scale=0.5)[0].size == (100, 150)


@pytest.mark.parametrize(
    ("size", "expected"), [((4096, 6000), (2048, 3000)), ((3000, 2500), (2458, 2048)), ((300, 9000), (300, 9000))]
)
def test_qnrf_limits_the_shorter_side_to_2048(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert qnrf(size).size == expected
    crops = qnrf_crops(size, 0)
    assert {crop.size for crop in crops} == {(min(512, expected[0]), 512)}
    for crop in crops:
        crop.edges(size)


@pytest.mark.parametrize(("size", "views"), [((512, 512), 2), ((300, 400), 2), ((300, 513), 18)])
def test_a_photo_that_is_no_larger_than_a_crop_is_taken_once(size: tuple[int, int], views: int) -> None:
    crops = qnrf_crops(size, 0)
    assert len(crops) == views
    assert (crops[0] == full(size)) == (views == 2)
    assert crops[views // 2 :] == [view.mirrored() for view in crops[: views // 2]]


@pytest.mark.parametrize("rule", [paper_crops, qnrf_crops, lambda size: [full(size), qnrf(size)]])
@pytest.mark.parametrize("size", [(1, 1), (40, 700)])
def test_every_rule_sees_every_photo(rule: Callable[[tuple[int, int]], list[View]], size: tuple[int, int]) -> None:
    for view in rule(size):
        counts = view.patch_counts([(0.5, 0.5)], size)
        assert counts.shape == view.grid
        assert np.isfinite(counts).all()
        assert view.apply_image(np.zeros((*size, 3), np.uint8)).shape[:2] == view.size


def test_a_view_beyond_the_photo_is_refused() -> None:
    with pytest.raises(LibraError, match="301 × 203"):
        View(0, 0, 400, 100).patch_counts(crowd(), SIZE)


def test_a_dot_on_the_left_border_is_in_the_mirrored_photo_too() -> None:
    (x, y), *_ = full((64, 96), mirror=True).apply_points([[0.0, 5.0]], (64, 96))
    assert 95 < x < 96
    assert y == 5
