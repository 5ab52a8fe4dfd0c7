"""JHU-Crowd++: 2,272, 500 and 1,600 photos, some of them without a single person."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from libra_gym.counts import Points
from libra_gym.datasets.base import Photo
from libra_gym.datasets.labels import read_text
from libra_gym.datasets.released import ReleasedDataset, subdirectory


class JHUCrowd(ReleasedDataset):
    """The release ``jhu_crowd_v2.0``; its own ``val`` is the split ``validation``."""

    name = "jhu"
    splits = ("train", "validation", "test")
    parts: ClassVar[Mapping[str, int]] = {"train": 2272, "validation": 500, "test": 1600}
    photo_name = "{}.jpg"
    label_name = "{}.txt"
    expects = "train/images/0001.jpg, train/gt/0001.txt and so on, also val and test"

    def _directories(self, part: str) -> tuple[Path, Path] | None:
        home = subdirectory(self.root, "jhu_crowd_v2.0", "jhu_crowd++", "jhu_crowd") or self.root
        folder = subdirectory(home, part, "val" if part == "validation" else part)
        images = subdirectory(folder, "images") if folder else None
        return (images, subdirectory(images.parent, "gt") or images.parent / "gt") if images else None

    def _photos(self, split: str) -> list[Photo]:
        return list(self._listed[split].values())

    def missing(self) -> list[str]:
        """A sentence for each part that lacks photos; their numbers have gaps, so that names cannot be told."""
        return [
            f"The split {part!r} has {len(photos)} of {self.parts[part]} photos."
            for part, photos in self._listed.items()
            if 0 < len(photos) < self.parts[part]
        ]

    @staticmethod
    def read_points(labels: Path) -> Points:
        """Dots of a ``gt/k.txt``, whose lines are ``x y w h o b``."""
        return read_text(labels)
