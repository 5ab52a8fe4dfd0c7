"""Patch counts: equal to integrating the density, of the documented mass, and safe on every odd set of dots."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import erf

from libra_gym.counts import (
    DEFAULT_KERNEL,
    KERNELS,
    HeadDensity,
    Kernel,
    inside,
    patch_counts,
    patch_edges,
    sigmas,
)
from libra_gym.errors import LibraError

PRESETS = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
SMOOTH = pytest.mark.parametrize("name", ["paper", "capped", "fixed"])
FOUR_SIGMA_MASS = float(erf(4 / np.sqrt(2)) ** 2)  # 0.99987


def scattered(number: int, size: tuple[int, int], seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(0, size[::-1], (number, 2)).astype(np.float32)


def sampled_counts(
    points: NDArray[np.float32], size: tuple[int, int], kernel: Kernel, fine: int
) -> NDArray[np.float64]:
    """Patch counts by brute force: the Gaussian's formula at `fine`² places in each pixel, cut, scaled and summed."""
    height, width = size
    ys, xs = (np.arange(height * fine) + 0.5) / fine, (np.arange(width * fine) + 0.5) / fine
    density = np.zeros((len(ys), len(xs)))
    for (x, y), sigma in zip(points.astype(np.float64), sigmas(points, kernel)):
        reach = min((kernel.cut_sigmas or np.inf) * sigma, kernel.cut_pixels or np.inf)
        dy, dx = ys - y, xs - x
        row = np.exp(-(dy**2) / (2 * sigma**2)) * (abs(dy) <= reach)
        column = np.exp(-(dx**2) / (2 * sigma**2)) * (abs(dx) <= reach)
        mass = row.sum() * column.sum() if kernel.renormalise else 2 * np.pi * (sigma * fine) ** 2
        density += np.outer(row, column) / mass
    density = np.pad(density, ((0, -height % 32 * fine), (0, -width % 32 * fine)))
    step = 32 * fine
    return density.reshape(density.shape[0] // step, step, density.shape[1] // step, step).sum(axis=(1, 3))


@SMOOTH
@pytest.mark.parametrize(("number", "size"), [(40, (70, 100)), (6, (64, 64)), (3, (45, 33)), (1, (50, 90))])
def test_counts_equal_a_finely_sampled_density_map(name: str, number: int, size: tuple[int, int]) -> None:
    points = scattered(number, size, seed=number)
    counts = patch_counts(points, size, KERNELS[name])
    assert counts.dtype == np.float32
    np.testing.assert_allclose(counts, sampled_counts(points, size, KERNELS[name], fine=24), atol=1e-3)


@PRESETS
def test_patches_of_a_pixel_add_up_to_patches_of_32(kernel: Kernel) -> None:
    size = 70, 100
    points = scattered(50, size)
    density = np.pad(patch_counts(points, size, kernel, patch=1), ((0, 26), (0, 28)))
    np.testing.assert_allclose(
        density.reshape(3, 32, 4, 32).sum(axis=(1, 3)), patch_counts(points, size, kernel), atol=1e-4
    )


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["capped", "fixed", "points"]),
    number=st.integers(0, 60),
    size=st.tuples(st.integers(1, 150), st.integers(1, 150)),
    seed=st.integers(0, 1000),
)
def test_renormalised_kernels_and_points_keep_every_person(
    name: str, number: int, size: tuple[int, int], seed: int
) -> None:
    counts = patch_counts(scattered(number, size, seed), size, KERNELS[name])
    assert counts.shape == (-(-size[0] // 32), -(-size[1] // 32))
    assert (counts >= 0).all()
    assert counts.sum() == pytest.approx(number, abs=1e-3)


def test_the_papers_kernel_loses_the_tails_and_what_is_beyond_the_border() -> None:
    size = 400, 400
    middle = patch_counts([(200, 200), (205, 200), (200, 205), (205, 205)], size, KERNELS["paper"])
    assert middle.sum() == pytest.approx(4 * FOUR_SIGMA_MASS, abs=1e-5)
    half_out = patch_counts([(0, 200)], size, KERNELS["paper"])
    assert half_out.sum() == pytest.approx(FOUR_SIGMA_MASS / 2, abs=1e-5)
    quarter = patch_counts([(0, 0)], size, KERNELS["paper"])
    assert quarter.sum() == pytest.approx(FOUR_SIGMA_MASS / 4, abs=1e-5)


def test_sigma_is_beta_times_the_mean_distance_to_three_neighbours() -> None:
    """The appendix's equation of σ."""
    points = [(0, 0), (3, 0), (0, 4), (100, 0), (200, 200)]
    assert sigmas(points, KERNELS["paper"])[0] == pytest.approx(0.3 * (3 + 4 + 100) / 3)
    assert sigmas(points, KERNELS["capped"])[0] == pytest.approx(0.3 * (3 + 4 + 100) / 3)
    assert sigmas(points, KERNELS["capped"])[4] == pytest.approx(0.3 * 50)


@pytest.mark.parametrize(("number", "distance"), [(1, 50.0), (2, 10.0), (3, (10 + 20) / 2)])
def test_fewer_neighbours_than_three_are_enough(number: int, distance: float) -> None:
    points = [(30, 30), (40, 30), (50, 30)][:number]
    assert sigmas(points, KERNELS["paper"])[0] == pytest.approx(0.3 * distance)


@PRESETS
@pytest.mark.parametrize("number", range(5))
def test_few_dots_are_counted(kernel: Kernel, number: int) -> None:
    counts = patch_counts(scattered(number, (64, 64), seed=3) / 4 + 24, (64, 64), kernel)
    assert np.isfinite(counts).all()
    assert 0.5 * number <= counts.sum() <= number + 1e-3


@PRESETS
@pytest.mark.parametrize("copies", [2, 3, 4, 9])
def test_coincident_dots_are_as_many_people(kernel: Kernel, copies: int) -> None:
    counts = patch_counts([(80.0, 16.0)] * copies, (96, 160), kernel)
    assert counts.sum() == pytest.approx(copies, rel=2e-4)
    assert counts.argmax() == 2


@PRESETS
def test_dots_outside_and_dots_that_are_no_numbers_are_dropped(kernel: Kernel) -> None:
    size = 96, 128
    good = scattered(20, size)
    bad = [(-0.1, 5), (128, 5), (5, 96), (5, -300), (np.nan, 5), (5, np.inf)]
    everything = np.concatenate([good, np.array(bad, np.float32)])
    assert inside(everything, size).sum() == 20
    np.testing.assert_array_equal(patch_counts(everything, size, kernel), patch_counts(good, size, kernel))


@PRESETS
@pytest.mark.parametrize("size", [(1, 1), (1, 500), (31, 33), (32, 64)])
def test_tiny_photos_have_counts(kernel: Kernel, size: tuple[int, int]) -> None:
    counts = patch_counts([(0.5, 0.5)], size, kernel)
    assert counts.shape == (-(-size[0] // 32), -(-size[1] // 32))
    assert np.isfinite(counts).all()
    assert 0 < counts.sum() <= 1 + 1e-6


def test_a_hard_point_on_an_edge_belongs_to_the_patch_that_begins_there() -> None:
    counts = patch_counts([(32, 0), (31.999, 31.999), (0, 32)], (64, 64), KERNELS["points"])
    np.testing.assert_array_equal(counts, [[1, 1], [1, 0]])


def test_patches_out_of_reach_hold_exactly_nobody() -> None:
    for name in KERNELS:
        assert patch_counts([(16, 16), (17, 16)], (64, 320), KERNELS[name])[1, 9] == 0.0


@PRESETS
def test_any_edges_can_be_integrated(kernel: Kernel) -> None:
    size = 90, 110
    density = HeadDensity(scattered(300, size), size, kernel)
    whole = density.integrate([0, 90], [0, 110])
    parts = density.integrate([-40, 13.7, 50.2, 90], [0, 1.5, 64, 400])
    assert parts.shape == (3, 3)
    assert parts.sum() == pytest.approx(whole.item(), rel=1e-5)


def test_the_last_patch_ends_with_the_photo() -> None:
    assert patch_edges(70).tolist() == [0, 32, 64, 70]
    assert patch_edges(64).tolist() == [0, 32, 64]
    assert patch_edges(1).tolist() == [0, 1]


@PRESETS
def test_kernels_survive_json(kernel: Kernel) -> None:
    assert Kernel.from_dict(json.loads(json.dumps(kernel.to_dict(), allow_nan=False))) == kernel


def test_wrong_kernels_are_refused_by_name() -> None:
    with pytest.raises(LibraError, match="spread"):
        Kernel.from_dict({"spread": 1})
    with pytest.raises(LibraError, match=r"sigma.*-1"):
        Kernel(sigma=-1)
    with pytest.raises(LibraError, match=r"cap.*0"):
        Kernel(cap=0)
    with pytest.raises(LibraError, match=r"neighbours.*0"):
        Kernel(neighbours=0)


def test_the_default_kernel_is_a_preset() -> None:
    assert KERNELS[DEFAULT_KERNEL] == KERNELS["capped"]
