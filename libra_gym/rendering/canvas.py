"""Colours and anti-aliased drawing that the pictures of the scale share.

The colours of actions are those of the paper's weighing figure (Sec. 4.1): blue adds, dull red removes, yellow ends,
and the accumulated value is green.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

Image: TypeAlias = npt.NDArray[np.uint8]
Colour: TypeAlias = tuple[int, int, int]
Point: TypeAlias = tuple[float, float]

UP: Colour = (43, 103, 199)
DOWN: Colour = (172, 78, 72)
END: Colour = (240, 190, 40)
VALUE: Colour = (24, 138, 66)
CHOSEN: Colour = (226, 32, 38)
INK: Colour = (44, 50, 60)
FADED: Colour = (150, 153, 158)
PAPER: Colour = (250, 248, 243)
WHITE: Colour = (255, 255, 255)

_BITS = 4  # OpenCV takes coordinates as fixed-point numbers; four bits place an edge to a sixteenth of a pixel
_CAP_HEIGHT = 22.0  # the height of a digit at font scale 1


def action_colour(label: str) -> Colour:
    """The colour of an action, given its label: "-10" … "+10" or "end"."""
    return END if label == "end" else DOWN if label.startswith("-") else UP


def rgb(colour: Colour) -> tuple[float, float, float]:
    """A colour as matplotlib takes it."""
    return colour[0] / 255, colour[1] / 255, colour[2] / 255


def short_number(number: float) -> str:
    """A number as briefly as it can be read: "17", "2.35"; never "-0"."""
    return f"{round(number, 2) + 0.0:g}"


class Canvas:
    """A picture to draw on, in units of its own that are `scale` pixels each and start at `origin` (in pixels)."""

    def __init__(self, image: Image, scale: float = 1.0, origin: Point = (0.0, 0.0)) -> None:
        self.image = image
        self.scale = scale
        self.origin = origin

    def _pixels(self, points: Sequence[Point]) -> npt.NDArray[np.int32]:
        # A unit square's corner is the corner of a pixel, but OpenCV counts from the pixel's middle.
        pixels = np.asarray(points, np.float64) * self.scale + self.origin - 0.5
        return np.round(pixels * (1 << _BITS)).astype(np.int32)

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        """A filled polygon."""
        cv2.fillPoly(self.image, [self._pixels(points)], colour, cv2.LINE_AA, _BITS)

    def box(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        """A filled upright rectangle."""
        self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], colour)

    def line(self, points: Sequence[Point], colour: Colour, width: float = 1.0) -> None:
        """A line through the points."""
        pixels, thickness = self._pixels(points), max(1, round(width * self.scale))
        cv2.polylines(self.image, [pixels], False, colour, thickness, cv2.LINE_AA, _BITS)

    def disc(self, centre: Point, radius: float, colour: Colour) -> None:
        """A filled circle."""
        x, y = self._pixels([centre])[0].tolist()
        cv2.circle(self.image, (x, y), round(radius * self.scale * (1 << _BITS)), colour, -1, cv2.LINE_AA, _BITS)

    def text(
        self,
        text: str,
        at: Point,
        height: float,
        colour: Colour = INK,
        *,
        align: Literal["left", "middle", "right"] = "middle",
        bold: bool = False,
    ) -> None:
        """One line of ASCII text whose digits are `height` units tall and vertically centred on `at`."""
        font = cv2.FONT_HERSHEY_DUPLEX if bold else cv2.FONT_HERSHEY_SIMPLEX
        size = height * self.scale / _CAP_HEIGHT
        width = cv2.getTextSize(text, font, size, 1)[0][0]
        shift = {"left": 0.0, "middle": 0.5, "right": 1.0}[align] * width
        x, y = np.asarray(at) * self.scale + self.origin
        foot = (round(float(x - shift)), round(float(y + height * self.scale / 2)))
        cv2.putText(self.image, text, foot, font, size, colour, 1, cv2.LINE_AA)

    def paste(self, picture: Image, left: float, top: float, right: float, bottom: float) -> None:
        """A picture, stretched to a rectangle."""
        ends = np.round(np.array([(left, top), (right, bottom)]) * self.scale + self.origin).astype(int)
        (x0, y0), (x1, y1) = ends.tolist()
        self.image[y0:y1, x0:x1] = cv2.resize(picture, (x1 - x0, y1 - y0), interpolation=cv2.INTER_LINEAR)
