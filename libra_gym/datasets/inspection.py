"""Looking through a copy of a data set: what it holds, what is odd about it, and what is broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from libra_gym.counts import Size, inside
from libra_gym.datasets.base import CrowdDataset, Photo
from libra_gym.datasets.images import is_turned
from libra_gym.errors import LibraError

T = TypeVar("T")


@dataclass
class SplitReport:
    """What was found in the photos of a split."""

    split: str
    sizes: list[Size] = field(default_factory=list)
    people: list[int] = field(default_factory=list)
    """Dots as annotated, those outside of the photo included."""
    quirks: Counter[str] = field(default_factory=Counter)
    """Oddities that are dealt with, and in how many photos or dots."""
    notes: list[str] = field(default_factory=list)
    """What is known about single photos."""
    broken: list[str] = field(default_factory=list)
    """A sentence for each file that is missing, truncated or unreadable."""

    def add(self, photo: Photo, note: str | None = None) -> None:
        """Read a photo and its dots and take them in."""
        if note:
            self.notes.append(f"{photo.name}: {note}")
        points, image = self._read(photo.points), self._read(photo.image)
        if points is None or image is None:
            return
        size = image.shape[0], image.shape[1]
        self.sizes.append(size)
        self.people.append(len(points))
        self.quirks += Counter(
            {
                "grey photos": int((image == image[..., :1]).all()),
                "photos without people": int(len(points) == 0),
                "photos that EXIF says to turn (read as they are stored, like their dots)": int(is_turned(photo.path)),
                "dots outside of their photo (left out of patch counts)": int((~inside(points, size)).sum()),
                "dots on top of another (each counts)": len(points) - len(np.unique(points, axis=0)),
            }
        )

    def _read(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except LibraError as error:
            self.broken.append(str(error))
            return None


def inspect(dataset: CrowdDataset) -> Iterator[SplitReport]:
    """A report for each split on disk, every file of which is read; splits which only regroup others are skipped."""
    seen: set[str] = set()
    for split in dataset.present():
        photos = [photo for photo in dataset.photos(split) if photo.name not in seen]
        if not photos:
            continue
        seen |= {photo.name for photo in photos}
        report = SplitReport(split)
        for photo in photos:
            report.add(photo, dataset.quirks.get(photo.name))
        yield report
