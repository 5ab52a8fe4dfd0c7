"""ShanghaiTech part A and part B (the paper's Tables on SHT A and SHT B)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from libra_gym.counts import Points
from libra_gym.datasets.base import Photo
from libra_gym.datasets.labels import read_mat
from libra_gym.datasets.released import ReleasedDataset, is_called, subdirectory
from libra_gym.splits import parts

logger = logging.getLogger(__name__)
_TOLD: set[Path] = set()
"""Photos whose absence the log has told."""


class _ShanghaiTech(ReleasedDataset):
    """One of the two parts. ``validation`` is the training photos whose numbers are divisible by ten."""

    letter: ClassVar[str]
    leaked: ClassVar[Mapping[str, str]] = {}
    """Training photos by number that are in the test set too, with what they are there."""
    photo_name = "IMG_{}.jpg"
    label_name = "GT_IMG_{}.mat"

    def _directories(self, part: str) -> tuple[Path, Path] | None:
        spellings = (f"part_{self.letter}", f"part_{self.letter}_final")
        home = self.root if is_called(self.root, *spellings) else subdirectory(self.root, *spellings)
        if home is None and (release := subdirectory(self.root, "ShanghaiTech", "ShanghaiTech_Crowd_Counting_Dataset")):
            home = subdirectory(release, *spellings)
        folder = subdirectory(home, f"{part}_data", part) if home else None
        images = subdirectory(folder, "images", "img") if folder else None
        if folder is None or images is None:
            return None
        return images, subdirectory(folder, "ground-truth", "gt") or folder / "ground-truth"

    def photos(self, split: str) -> list[Photo]:
        """The photos of a split, or of several joined by ``+``; the log says what is left out of training."""
        photos = super().photos(split)
        asked = {part.split for part in parts(split)}
        if "train" in asked and "leaked" not in asked:
            for number in self.leaked.keys() & self._listed["train"].keys():
                photo = self._listed["train"][number]
                if photo.path not in _TOLD:
                    _TOLD.add(photo.path)
                    logger.info("%s is left out of training: it is %s.", photo.name, self.leaked[number])
        return photos

    def _photos(self, split: str) -> list[Photo]:
        if split == "test":
            return list(self._listed["test"].values())
        train = self._listed["train"]
        leaked = {number: photo for number, photo in train.items() if number in self.leaked}
        if split == "leaked":
            return list(leaked.values())
        return [
            photo
            for number, photo in train.items()
            if number not in leaked and (int(number) % 10 == 0) == (split == "validation")
        ]

    @staticmethod
    def read_points(labels: Path) -> Points:
        """Dots of a ``GT_IMG_k.mat``."""
        return read_mat(labels, lambda mat: mat["image_info"][0, 0][0, 0][0])


class ShanghaiTechA(_ShanghaiTech):
    """Part A: 300 and 182 dense crowds from the web.

    Training photo IMG_121 is byte for byte the test photo IMG_98. It is in neither ``train`` nor ``validation``, but
    in a split of its own, ``leaked``.
    """

    name = "shanghaitech_a"
    letter = "A"
    splits = ("train", "validation", "test", "leaked")
    parts: ClassVar[Mapping[str, int]] = {"train": 300, "test": 182}
    leaked: ClassVar[Mapping[str, str]] = {"121": "the same file as test/IMG_98"}
    quirks: ClassVar[Mapping[str, str]] = {
        "train/IMG_121": "the same file as test/IMG_98",
        "train/IMG_169": "the same photo as train/IMG_167",
        "train/IMG_283": "the same photo as train/IMG_118",
    }
    expects = (
        "part_A/train_data/images/IMG_1.jpg, part_A/train_data/ground-truth/GT_IMG_1.mat and so on, also test_data"
    )


class ShanghaiTechB(_ShanghaiTech):
    """Part B: 400 and 316 street scenes of one size."""

    name = "shanghaitech_b"
    letter = "B"
    splits = ("train", "validation", "test")
    parts: ClassVar[Mapping[str, int]] = {"train": 400, "test": 316}
    quirks: ClassVar[Mapping[str, str]] = {
        f"train/IMG_{number}": "known to be labelled badly" for number in (108, 202, 217, 296, 396)
    }
    expects = (
        "part_B/train_data/images/IMG_1.jpg, part_B/train_data/ground-truth/GT_IMG_1.mat and so on, also test_data"
    )
