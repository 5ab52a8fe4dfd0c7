"""UCF-QNRF: 1,201 and 334 photos of up to ten thousand pixels' width; see ``views.qnrf`` for the paper's size limit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from libra_gym.counts import Points
from libra_gym.datasets.base import Photo, held_out
from libra_gym.datasets.labels import read_mat
from libra_gym.datasets.released import ReleasedDataset, subdirectory


class UCFQNRF(ReleasedDataset):
    """The release ``UCF-QNRF_ECCV18``. ``validation`` is a fixed tenth of the training photos."""

    name = "ucf_qnrf"
    splits = ("train", "validation", "test")
    parts: ClassVar[Mapping[str, int]] = {"train": 1201, "test": 334}
    photo_name = "img_{}.jpg"
    label_name = "img_{}_ann.mat"
    digits = 4
    expects = "Train/img_0001.jpg, Train/img_0001_ann.mat and so on, also Test"

    def _directories(self, part: str) -> tuple[Path, Path] | None:
        home = subdirectory(self.root, "UCF-QNRF_ECCV18", "UCF-QNRF") or self.root
        folder = subdirectory(home, part)
        return (folder, folder) if folder else None

    def _photos(self, split: str) -> list[Photo]:
        if split == "test":
            return list(self._listed["test"].values())
        train = self._listed["train"].values()
        validation = held_out(photo.name for photo in train)
        return [photo for photo in train if (photo.name in validation) == (split == "validation")]

    @staticmethod
    def read_points(labels: Path) -> Points:
        """Dots of an ``img_k_ann.mat``."""
        return read_mat(labels, lambda mat: mat["annPoints"])
