"""The canvas on which synthetic scenes are painted, from far to near, in the coordinates of the finished picture.

Beside the colours it keeps who owns each pixel, so that it is known in the end whose head can still be seen.
"""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

Colour = NDArray[np.float64]  # (3,) red, green, blue in 0..255

OVERSAMPLING = 3  # shapes are painted this much larger and then averaged: the anti-aliasing of the smallest heads
_SUBPIXEL_BITS = 4
NOBODY = 0


@lru_cache
def unit_circle(corners: int = 20) -> NDArray[np.float64]:
    """A circle of radius 1 as a polygon, `(corners, 2)`, beginning at the right and going down first."""
    turn = np.linspace(0, 2 * np.pi, corners, endpoint=False)
    return np.stack([np.cos(turn), np.sin(turn)], axis=1)


class Canvas:
    """An opaque painting of `size` (height, width), and the owner of each of its pixels."""

    def __init__(self, size: tuple[int, int]) -> None:
        height, width = size
        self.size = size
        self.pixels = np.zeros((height * OVERSAMPLING, width * OVERSAMPLING, 3), np.uint8)
        self.owners = np.full(self.pixels.shape[:2], NOBODY, np.int32)

    def polygon(self, outline: ArrayLike, colour: Colour, owner: int = NOBODY) -> None:
        """Fill the closed `outline`, `(n, 2)` of (x, y)."""
        corners = self._fixed_point(outline)
        cv2.fillPoly(self.pixels, [corners], colour.tolist(), shift=_SUBPIXEL_BITS)
        cv2.fillPoly(self.owners, [corners], owner, shift=_SUBPIXEL_BITS)

    def ellipse(self, x: float, y: float, rx: float, ry: float, colour: Colour, owner: int = NOBODY) -> None:
        """Fill the upright ellipse around (x, y)."""
        self.polygon(unit_circle() * (rx, ry) + (x, y), colour, owner)

    def box(self, x: float, y: float, half_width: float, height: float, colour: Colour) -> None:
        """Fill the rectangle that stands on (x, y)."""
        left, right, top = x - half_width, x + half_width, y - height
        self.polygon([(left, y), (left, top), (right, top), (right, y)], colour)

    def stroke(self, path: ArrayLike, width: float, colour: Colour) -> None:
        """Draw a line of `width` along the open `path`, `(n, 2)`."""
        corners, thickness = self._fixed_point(path), max(1, round(width * OVERSAMPLING))
        cv2.polylines(self.pixels, [corners], False, colour.tolist(), thickness, shift=_SUBPIXEL_BITS)
        cv2.polylines(self.owners, [corners], False, NOBODY, thickness, shift=_SUBPIXEL_BITS)

    def shrunk(self) -> NDArray[np.uint8]:
        """The finished picture, `(height, width, 3)`."""
        height, width = self.size
        return np.asarray(cv2.resize(self.pixels, (width, height), interpolation=cv2.INTER_AREA), np.uint8)

    @staticmethod
    def _fixed_point(path: ArrayLike) -> NDArray[np.int32]:
        # OpenCV's integer coordinates are pixel centres, ours are pixel corners.
        steps = 1 << _SUBPIXEL_BITS
        return np.rint(np.asarray(path) * (OVERSAMPLING * steps) - 0.5 * steps).astype(np.int32)
