"""Synthetic crowd scenes, the data set made of them, and the demo bank that ships with the package."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_gym.bank import FeatureBank
from libra_gym.counts import patch_counts
from libra_gym.datasets import open_dataset, synthetic
from libra_gym.datasets.synthetic import SEEDS, Scene, Synthetic, draw_scene, redraw, scene_name
from libra_gym.datasets.synthetic.canvas import Canvas
from libra_gym.datasets.synthetic.scene import visible_heads
from libra_gym.errors import LibraError

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "libra_gym" / "assets" / "demo.safetensors"
WEIGHTS = REPOSITORY.parent / "shared" / "weights" / "vgg16_imagenet_features.safetensors"


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [draw_scene(seed) for seed in range(24)]


@pytest.fixture(scope="module")
def demo() -> FeatureBank:
    return FeatureBank.load(DEMO)


def fingerprint(scene: Scene) -> str:
    return hashlib.sha256(scene.image.tobytes() + scene.points.tobytes()).hexdigest()


def test_a_seed_always_draws_the_same_scene(scenes: list[Scene]) -> None:
    assert [fingerprint(draw_scene(seed)) for seed in (3, 5)] == [fingerprint(scenes[seed]) for seed in (3, 5)]


def test_another_process_draws_the_same_scene(scenes: list[Scene]) -> None:
    script = (
        "import hashlib; from libra_gym.datasets.synthetic import draw_scene; scene = draw_scene(7);"
        "print(hashlib.sha256(scene.image.tobytes() + scene.points.tobytes()).hexdigest())"
    )
    there = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == fingerprint(scenes[7])


def test_different_seeds_draw_different_scenes(scenes: list[Scene]) -> None:
    assert len({scene.image.tobytes() for scene in scenes}) == len(scenes)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), height=st.integers(32, 200), width=st.integers(32, 200))
def test_every_dot_is_in_a_picture_of_the_size_asked_for(seed: int, height: int, width: int) -> None:
    scene = draw_scene(seed, (height, width))
    assert scene.image.shape == (height, width, 3)
    assert scene.image.dtype == np.uint8
    assert scene.points.dtype == np.float32
    assert scene.points.shape == (len(scene.points), 2)
    assert ((scene.points >= 0) & (scene.points < (width, height))).all()


def test_crowds_range_from_nobody_to_hundreds(scenes: list[Scene]) -> None:
    people = np.array([len(scene.points) for scene in scenes])
    assert people.min() == 0
    assert people.max() > 300
    assert np.percentile(people, 90) > 20 * max(1, np.percentile(people, 15))


def test_patches_range_from_nobody_to_twenty_people_also_within_one_picture(scenes: list[Scene]) -> None:
    maps = [patch_counts(scene.points, scene.image.shape[:2]) for scene in scenes]
    assert 15 < max(counts.max() for counts in maps) < 40
    assert sum(counts.max() > 5 and counts.min() < 0.1 for counts in maps) > len(maps) / 10


def test_pictures_without_people_are_not_plain(scenes: list[Scene]) -> None:
    empty = [scene.image for scene in scenes if len(scene.points) == 0]
    assert min(image.std() for image in empty) > 3


def test_a_head_counts_while_some_of_it_can_be_seen() -> None:
    canvas = Canvas((40, 90))
    cloth = np.array([200.0, 30.0, 30.0])
    heads = np.array([(10, 20), (40, 20), (70, 20), (89, -5)], np.float32)
    for owner, (x, y) in enumerate(heads.tolist(), start=1):
        canvas.ellipse(x, y, 5, 6.1, cloth, owner)
    canvas.box(40, 40, 8, 40, cloth)  # hides the second head
    canvas.box(78, 40, 8, 40, cloth)  # hides half of the third; the fourth lies above the picture
    assert visible_heads(canvas, heads, np.full(4, 5.0)).tolist() == [True, False, True, False]


def test_a_scene_can_be_redrawn_from_its_name(scenes: list[Scene]) -> None:
    assert scene_name(7) == "scene-0007"
    assert fingerprint(redraw("scene-0007")) == fingerprint(scenes[7])
    with pytest.raises(LibraError, match=r"'IMG_7'.*scene-0042"):
        redraw("IMG_7")


def test_the_data_set_needs_no_disk() -> None:
    data = open_dataset("synthetic")
    assert {split: len(data.photos(split)) for split in data.splits} == {s: len(seeds) for s, seeds in SEEDS.items()}
    photo = data.photos("test")[0]
    scene = redraw(photo.name)
    np.testing.assert_array_equal(photo.image(), scene.image)
    np.testing.assert_array_equal(photo.points(), scene.points)


def test_with_a_directory_photos_and_dots_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(synthetic.SEEDS, "test", range(104, 107))
    photos = Synthetic(tmp_path).photos("test")
    for photo in photos:
        scene = redraw(photo.name)
        np.testing.assert_array_equal(photo.image(), scene.image)
        np.testing.assert_array_equal(photo.points(), scene.points)
    assert sorted(path.suffix for path in tmp_path.rglob("scene-*")) == [".csv"] * 3 + [".png"] * 3
    photos[0].labels.write_text("")
    assert len(Synthetic(tmp_path).photos("test")[0].points()) == 0  # what is there is left alone


def test_scenes_belong_to_one_split() -> None:
    seeds = [seed for split in SEEDS.values() for seed in split]
    assert len(seeds) == len(set(seeds))


def test_the_demo_bank_is_small_and_whole(demo: FeatureBank) -> None:
    assert DEMO.stat().st_size < 4_000_000
    assert demo.channels == 512
    assert 6_000 <= len(demo) <= 7_000
    assert demo.num_intervals > 50
    for split, seeds in SEEDS.items():
        assert [image.name for image in demo.split(split).images] == [scene_name(seed) for seed in seeds]
        assert demo.split(split).intervals.unique().numel() > 40


def test_the_demo_bank_holds_the_dots_and_counts_of_its_scenes(demo: FeatureBank) -> None:
    assert demo.points is not None
    for i in (1, 90, 119):
        image, points = demo.images[i], redraw(demo.images[i].name).points
        np.testing.assert_array_equal(demo.points[i], points)
        assert image.people == len(points)
        np.testing.assert_allclose(
            demo.counts[demo.patches_of(i)].reshape(image.rows, image.cols), patch_counts(points, image.size), atol=1e-5
        )


@pytest.mark.real
@pytest.mark.skipif(not WEIGHTS.is_file(), reason="the weights of VGG16 are not at hand")
def test_the_demo_features_are_what_vgg16_sees(demo: FeatureBank) -> None:
    from experiments.make_demo_bank import make_bank
    from libra_gym.backbones import load_backbone

    seeds = {"train": [2, 11], "test": [118]}
    remade = make_bank(load_backbone("vgg16", weights=WEIGHTS), seeds)
    assert remade.meta == demo.meta
    step = (demo.features.amax(0) - demo.features.amin(0)) / 255
    for i, image in enumerate(remade.images):
        shipped = demo.features[demo.patches_of([other.name for other in demo.images].index(image.name))]
        error = (remade.features[remade.patches_of(i)] - shipped).abs()
        assert (error <= 0.51 * step + 1e-4).all()


@pytest.mark.parametrize("name", ["street.jpg", "train/street.jpg"])
def test_scenes_are_not_written_among_other_photos(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"a photo")
    with pytest.raises(LibraError, match=rf"holds '{name}', which is no drawn scene"):
        Synthetic(tmp_path)
    Synthetic(tmp_path / "new")
