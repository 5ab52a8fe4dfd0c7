"""Published data sets on disk: numbered photos and label files, in directories that the releases spell differently."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from libra_gym.counts import Points
from libra_gym.datasets.base import CrowdDataset, Photo
from libra_gym.errors import LibraError


class ReleasedDataset(CrowdDataset):
    """A data set of one or more parts (``train``, ``test``), each a directory of photos and one of labels.

    A photo is listed if either of its two files exists, so that a lost file is an error and not a smaller data set.
    """

    parts: ClassVar[Mapping[str, int]]
    """How many photos each part of the release has."""
    photo_name: ClassVar[str]
    """File name of a photo, ``{}`` being its number."""
    label_name: ClassVar[str]
    digits: ClassVar[int] = 1
    """With how many digits the release writes a number at least."""

    def __init__(self, root: Path) -> None:
        self.root = root
        if not any(self._listed.values()):
            raise LibraError(f"There is no data set {self.name!r} in {root}; the directory should hold {self.expects}.")

    @abstractmethod
    def _directories(self, part: str) -> tuple[Path, Path] | None:
        """Where the photos and the labels of a part are, or None if the part is not on disk."""

    @staticmethod
    @abstractmethod
    def read_points(labels: Path) -> Points:
        """Read a label file."""

    @cached_property
    def _listed(self) -> dict[str, dict[str, Photo]]:
        """The photos of each part by their numbers, as these are written, in ascending order."""
        return {part: self._list(part) for part in self.parts}

    def _list(self, part: str) -> dict[str, Photo]:
        directories = self._directories(part)
        if directories is None:
            return {}
        images, labels = directories
        numbers = _numbers(images, self.photo_name) | _numbers(labels, self.label_name)
        prefix = f"{part}/" if len(self.parts) > 1 else ""
        return {
            number: Photo(
                name=prefix + Path(self.photo_name.format(number)).stem,
                path=images / self.photo_name.format(number),
                labels=labels / self.label_name.format(number),
                reader=self.read_points,
            )
            for number in sorted(numbers, key=int)
        }

    def missing(self) -> list[str]:
        """A sentence for each part that lacks photos, with their numbers."""
        sentences = []
        for part, photos in self._listed.items():
            directories = self._directories(part)
            if directories and len(photos) < self.parts[part]:
                lost = sorted(set(range(1, self.parts[part] + 1)) - set(map(int, photos)))
                names = ", ".join(self.photo_name.format(f"{number:0{self.digits}}") for number in lost)
                sentences.append(f"{directories[0]} lacks {len(lost)} of {self.parts[part]} photos: {names}.")
        return sentences


def subdirectory(root: Path, *spellings: str) -> Path | None:
    """The directory below `root` with one of these names; case, blanks, ``_`` and ``-`` make no difference."""
    if not root.is_dir():
        return None
    known = {_plain(spelling) for spelling in spellings}
    return next((path for path in sorted(root.iterdir()) if path.is_dir() and _plain(path.name) in known), None)


def is_called(path: Path, *spellings: str) -> bool:
    """Whether a directory has one of these names, in the sense of :func:`subdirectory`."""
    names = {_plain(path.absolute().name), _plain(path.resolve().name)}  # of a link, and of what it leads to
    return not names.isdisjoint(map(_plain, spellings))


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


def _numbers(directory: Path, template: str) -> set[str]:
    pattern = re.compile(re.escape(template).replace(r"\{\}", r"(\d+)"))
    names = (path.name for path in directory.iterdir()) if directory.is_dir() else ()
    return {match[1] for match in map(pattern.fullmatch, names) if match}
