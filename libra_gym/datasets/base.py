"""What every data set of crowds is: named splits of photos, each photo with the dots of its heads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from libra_gym.counts import Points
from libra_gym.datasets.images import read_image
from libra_gym.errors import LibraError
from libra_gym.splits import by_hash, parts


@dataclass(frozen=True)
class Photo:
    """A photo on disk and the file with its dots; nothing is read before it is asked for."""

    name: str
    """Unique within the data set."""
    path: Path
    labels: Path
    reader: Callable[[Path], Points]

    def image(self) -> NDArray[np.uint8]:
        """The pixels, RGB, ``(height, width, 3)``."""
        return read_image(self.path)

    def points(self) -> Points:
        """All dots as they were annotated, ``(dots, 2)`` as x, y: some may coincide or lie outside of the photo."""
        if not self.labels.is_file():
            raise LibraError(f"The dots of {self.path} are missing: there is no file {self.labels}.")
        return self.reader(self.labels)


class CrowdDataset(ABC):
    """Named splits of photos.

    Splits can be joined by a plus sign, as in ``train+validation``, shared out, as in ``train:1/5``, and go without
    some of their photos, as in ``train:-IMG_108``.
    """

    name: str
    splits: tuple[str, ...]
    expects: str = "photos"
    """What the directory of the data set should hold, for messages."""
    quirks: ClassVar[Mapping[str, str]] = {}
    """What is known about certain photos, by their names."""

    @abstractmethod
    def _photos(self, split: str) -> list[Photo]:
        """The photos of one of ``splits`` in a fixed order; empty if this split is not on disk."""

    def photos(self, split: str) -> list[Photo]:
        """The photos of a split, of a share of it, or of several joined by ``+`` (`splits`), each photo once."""
        found: dict[str, Photo] = {}
        for part in parts(split):
            if part.split not in self.splits:
                raise LibraError(
                    f"The data set {self.name!r} has no split {part.split!r}; its splits are {', '.join(self.splits)}, "
                    "and several can be joined by '+'."
                )
            with readable(part.split):
                photos = self._photos(part.split)
            if not photos:
                raise LibraError(
                    f"The split {part.split!r} of the data set {self.name!r} holds no photo; its directory should hold "
                    f"{self.expects}."
                )
            picked = part.pick(photo.name for photo in photos)
            if not picked:
                raise LibraError(f"The split {part.split!r} has {len(photos)} photos, too few for {part.name!r}.")
            found |= {photo.name: photo for photo in photos if photo.name in picked}
        return list(found.values())

    @classmethod
    def divide(cls, split: str, names: Sequence[str]) -> list[str] | None:
        """The split of each of these photos in the division that `split` is of; None if `split` is of no other's parts.

        Only for data sets that are divided in several ways, as for cross-validation.
        """
        return None

    def present(self) -> list[str]:
        """The splits of which there are photos on disk."""
        with readable("the data set"):
            return [split for split in self.splits if self._photos(split)]

    def unread(self) -> list[str]:
        """A sentence for each kind of thing in the directory that a user may think is read and is not."""
        return []

    def missing(self) -> list[str]:
        """A sentence for each photo that the release has and this copy has not, in the directories it has."""
        return []


@contextmanager
def readable(what: object) -> Iterator[None]:
    """Say in a sentence that a directory of a data set cannot be read."""
    try:
        yield
    except OSError as error:
        raise LibraError(f"{error.filename or what} cannot be read ({error.strerror}).") from None


def held_out(names: Iterable[str], share: float = 0.1) -> set[str]:
    """A fixed share of the names, at least one of two or more.

    The order is that of a hash of the name: it depends on no random generator, and a photo more or less moves no other.
    """
    ranked = by_hash(names)
    return set(ranked[: max(round(share * len(ranked)), int(len(ranked) > 1))])
