"""Twins: a photo that stands in two places is found, however each place has changed it, and no other is."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.commands.data import app
from libra_gym.datasets import open_dataset
from libra_gym.datasets.twins import find_twins
from libra_gym.errors import LibraError

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def scene(seed: int) -> np.ndarray:
    """Large soft shapes, as photos have them."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return cv2.resize(coarse, (160, 120), interpolation=cv2.INTER_CUBIC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    changed = {
        "plain": scene(0),
        "another": scene(1),
        "grey": cv2.cvtColor(scene(0), cv2.COLOR_BGR2GRAY),
        "small": cv2.resize(scene(0), (80, 61), interpolation=cv2.INTER_AREA),
        "mirrored": scene(0)[:, ::-1],
        "dark": scene(0) // 2,
        "empty": np.full((120, 160, 3), 200, np.uint8),
        "empty too": np.full((50, 50, 3), 200, np.uint8),
    }
    for name, pixels in changed.items():
        cv2.imwrite(str(tmp_path / f"{name}.png"), pixels)
        (tmp_path / f"{name}.csv").write_text("3,4\n")
    return tmp_path


def test_a_changed_photo_is_found_and_no_other(folder: Path) -> None:
    photos = open_dataset("folder", folder).photos("all")
    found = find_twins(photos)
    same = {"plain.png", "grey.png", "small.png", "mirrored.png", "dark.png"}
    assert {frozenset((twins.first.name, twins.second.name)) for twins in found} == {
        frozenset((a, b)) for a in same for b in same if a < b
    }
    assert [twins.likeness for twins in found] == sorted((twins.likeness for twins in found), reverse=True)
    assert all(0.93 <= twins.likeness <= 1.0 for twins in found)


def test_two_sets_are_compared_with_each_other_alone(folder: Path) -> None:
    photos = {photo.path.stem: photo for photo in open_dataset("folder", folder).photos("all")}
    found = find_twins([photos["plain"], photos["grey"]], [photos["another"], photos["small"]])
    assert [(twins.first.path.stem, twins.second.path.stem) for twins in found] in (
        [("plain", "small"), ("grey", "small")],
        [("grey", "small"), ("plain", "small")],
    )
    assert find_twins([], [photos["plain"]]) == []


def test_the_command_prints_pairs_and_their_people(folder: Path) -> None:
    command = ["twins", "--dataset", "folder", "--root", str(folder)]
    said = CliRunner().invoke(app, [*command, "--split", "all"]).output
    assert "10 pairs of twins" in said
    assert "mirrored" in said
    said = CliRunner().invoke(app, [*command, "--split", "all", "--other", f"folder:all={folder}", "--least", "1"])
    assert "and folder, 8: " in said.output
    assert isinstance(CliRunner().invoke(app, [*command, "--other", "folder"]).exception, LibraError)


@pytest.mark.real
@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not next to the checkout")
def test_what_ucf_cc_50_shares_with_shanghaitech_is_noted() -> None:
    """The notes of both data sets on their twins are what is found."""
    a = open_dataset("shanghaitech_a", SHARED / "shanghaitech")
    ucf = open_dataset("ucf_cc_50", SHARED / "ucf_cc_50")
    noted = {name for name, note in ucf.quirks.items() if "ShanghaiTech A" in note}
    found = find_twins(ucf.photos("all"), a.photos("train+validation+leaked"))
    assert {twins.first.name for twins in found} == noted
    assert not any(int(twins.second.name.rpartition("_")[2]) % 10 == 0 for twins in found)  # none for validation
    for twins in found:
        assert twins.second.path.stem in ucf.quirks[twins.first.name]
