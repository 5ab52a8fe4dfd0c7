"""The same photo in two places: two splits of a data set, or two data sets.

A counter that has learnt from a photo must not be judged by it, and photos of crowds travel: data sets were collected
from the same web pages, and each has scaled, cut or decoloured the photos in its own way. So photos are compared by
small grey thumbnails, as they are and mirrored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from libra_gym.datasets.base import Photo

LIKENESS = 0.93
"""Twins are at least this much alike. In ShanghaiTech A and UCF_CC_50 the pairs above it are the same photo (the least
alike have 0.959); of those below, the three that were looked at, the most alike (0.871) among them, are not. A photo
that was cut in another way may be below it too."""

_SIDE = 32


@dataclass(frozen=True)
class Twins:
    """Two photos that look alike."""

    first: Photo
    second: Photo
    likeness: float
    """The correlation of their thumbnails: 1 for the same picture."""


def find_twins(photos: Sequence[Photo], others: Sequence[Photo] | None = None, least: float = LIKENESS) -> list[Twins]:
    """Pairs of a photo and one of the others, or of two of the photos, that look alike; the most alike first."""
    left = _thumbnails(photos)
    right = left if others is None else _thumbnails(others)
    likeness = np.maximum(left @ right.T, left @ _mirrored(right).T)
    if others is None:
        likeness[np.tril_indices(len(photos))] = -1.0  # no photo with itself, and each pair once
    pairs = np.argwhere(likeness >= least)
    found = [
        Twins(photos[a], (photos if others is None else others)[b], min(float(likeness[a, b]), 1.0)) for a, b in pairs
    ]
    return sorted(found, key=lambda twins: -twins.likeness)


def _thumbnails(photos: Sequence[Photo]) -> NDArray[np.float32]:
    """One row a photo, of mean zero and length one."""
    return np.stack(list(_each(photos))) if photos else np.empty((0, _SIDE**2), np.float32)


def _each(photos: Sequence[Photo]) -> Iterator[NDArray[np.float32]]:
    for photo in photos:
        grey = cv2.cvtColor(photo.image(), cv2.COLOR_RGB2GRAY)
        pixels = cv2.resize(grey, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA).astype(np.float32).ravel()
        pixels -= pixels.mean()
        yield pixels / max(float(np.linalg.norm(pixels)), 1e-6)


def _mirrored(thumbnails: NDArray[np.float32]) -> NDArray[np.float32]:
    return thumbnails.reshape(-1, _SIDE, _SIDE)[:, :, ::-1].reshape(-1, _SIDE**2)
