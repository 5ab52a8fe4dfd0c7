"""A user's own photos, each with a CSV or JSON file of dots next to it; the format is described in docs/datasets.md."""

from __future__ import annotations

from pathlib import Path

from libra_gym.counts import Points
from libra_gym.datasets.base import CrowdDataset, Photo, held_out
from libra_gym.datasets.images import is_overlay
from libra_gym.datasets.labels import read_csv, read_json
from libra_gym.errors import LibraError
from libra_gym.suffixes import PHOTO_SUFFIXES, UNREAD_SUFFIXES, VIDEO_SUFFIXES

_PHOTOS = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff")
_OTHERS = {*PHOTO_SUFFIXES, *UNREAD_SUFFIXES, *VIDEO_SUFFIXES} - {*_PHOTOS}
_PARTS = ("train", "validation", "test")
_LABELS = {".csv": read_csv, ".json": read_json}


class Folder(CrowdDataset):
    """Photos directly in a directory, or in its subdirectories ``train``, ``validation`` (or ``val``) and ``test``.

    Photos that lie directly in the directory count as training photos. Without a ``validation`` directory a fixed tenth
    of the training photos is held out for validation.
    """

    name = "folder"
    splits = ("train", "validation", "test", "all")
    expects = (
        "photos like street.jpg, each with street.csv or street.json, or subdirectories train, validation and test"
    )

    def __init__(self, root: Path) -> None:
        self.root = root
        if not self._photos("all"):
            raise LibraError(f"There is no photo in {root}; the directory should hold {self.expects}.")

    def _photos(self, split: str) -> list[Photo]:
        train = self._list("train") + self._list("")
        validation = self._list("validation")
        if split == "all":
            return train + validation + self._list("test")
        if split == "test":
            return self._list("test")
        if not validation:
            names = held_out(photo.name for photo in train)
            validation = [photo for photo in train if photo.name in names]
            train = [photo for photo in train if photo.name not in names]
        return validation if split == "validation" else train

    def _list(self, folder: str) -> list[Photo]:
        directories = [self.root]
        if folder:  # however it is spelt
            directories = [path for path in self.root.iterdir() if _part(path.name) == folder and path.is_dir()]
        photos = (path for directory in directories for path in directory.iterdir())
        # In files like ._street.jpg, macOS keeps what it knows of street.jpg.
        named = (path for path in photos if path.suffix.lower() in _PHOTOS and not path.name.startswith("._"))
        paths = sorted(path for path in named if not is_overlay(path))
        return [Photo(path.relative_to(self.root).as_posix(), path, _labels_of(path), read_dots) for path in paths]

    def unread(self) -> list[str]:
        """Directories of other names, photos of kinds that are not read, and dots without a photo."""
        inner = sorted(path for path in self.root.iterdir() if path.is_dir() and not path.name.startswith("."))
        parts = [path for path in inner if _part(path.name) in _PARTS]
        said = [
            f"the directory {path.name!r} is not read; photos lie in {', '.join(_PARTS)}, or directly in {self.root}"
            for path in inner
            if path not in parts
        ]
        files = [path for place in (self.root, *parts) for path in place.iterdir() if path.is_file()]
        others = [path for path in files if path.suffix.lower() in _OTHERS]
        if others:
            said.append(f"files of kinds that are not read: {len(others)}, such as {min(others).name}")
        used = {photo.labels for photo in self._photos("all")}
        alone = [path for path in files if path.suffix.lower() in _LABELS and path not in used]
        if alone:
            said.append(f"files of dots that no photo uses: {len(alone)}, such as {min(alone).name}")
        return said


def _part(directory: str) -> str:
    """Which part of the data set a directory holds, however it is spelt."""
    name = directory.lower()
    return "validation" if name == "val" else name


def read_dots(path: Path) -> Points:
    """Dots of a CSV or JSON file."""
    return _LABELS[path.suffix](path)


def _labels_of(photo: Path) -> Path:
    candidates = [photo.with_suffix(suffix) for suffix in _LABELS]
    return next((path for path in candidates if path.is_file()), candidates[0])
