"""Pictures for people who count: where the people of a photo are, and how many there are in the course of a video."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

import cv2
import numpy as np
import numpy.typing as npt

from libra_gym.counts import PATCH
from libra_gym.rendering.canvas import UP, Image
from libra_gym.rendering.grid import check_grid
from libra_gym.rendering.names import families, shortened, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONG_SIDE = 10.0  # inches
_LETTERS = 10  # of a title, to an inch
_SHOWN_SIDE = 1600  # pixels of the photo: as many as can be seen at that size
_PALE = 0.35  # how much of the photo's colour is left under the map
_SPARSE = 0.1  # people in a patch below which nothing is drawn over it


def overlay_figure(
    image: Image, patch_map: npt.NDArray[np.floating], title: str, scale: float = 1.0, note: str = ""
) -> Figure:
    """A photo with its people laid over it as colours, patch by patch, and what the colours mean.

    Args:
        image: the photo as it was counted, RGB.
        patch_map: people in each patch, (rows, cols).
        title: what to write over it; a line that is too long loses its middle.
        scale: how many times larger than the photo the image is.
        note: a sentence that is written below the title, whole, over as many lines as it needs.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    rows, cols = patch_map.shape
    check_grid(image, rows, cols)
    height, width = image.shape[:2]
    inch = _LONG_SIDE / max(height, width)
    size = (max(width * inch, 5.0) + 1.0, max(height * inch, 2.0) + 1.0)
    figure = Figure(figsize=size, layout="compressed", facecolor="white")
    ax = figure.subplots()
    ax.imshow(_pale(image), extent=(0, width, height, 0))
    # Most patches hold few people and some hold many: a square-root scale shows both.
    norm = PowerNorm(0.5, vmin=0, vmax=max(1.0, float(patch_map.max())))
    shown = np.ma.masked_less(patch_map, _SPARSE)
    extent = (0, cols * PATCH, rows * PATCH, 0)
    colours = ax.imshow(shown, norm=norm, cmap="plasma", alpha=0.6, extent=extent, interpolation="nearest")
    ax.set(xlim=(0, width), ylim=(height, 0))
    letters = int(_LETTERS * size[0])
    lines = [shortened(line, letters) for line in title.splitlines()] + wrap(note, letters)
    ax.set_title(written("\n".join(lines)), fontsize=13, fontfamily=families(title))
    ax.set_axis_off()
    place = "bottom" if width > height else "right"
    side = f"{PATCH / scale:.3g}"
    label = f"people in a patch of {side} × {side} pixels"
    bar = figure.colorbar(colours, ax=ax, location=place, shrink=0.9, pad=0.01, aspect=40, label=label)
    bar.solids.set_alpha(1.0)  # type: ignore[union-attr]  # a bar of colours has them
    return figure


def course_figure(times: Sequence[float], counts: Sequence[float], title: str) -> Figure:
    """How many people there are in the course of a video.

    Args:
        times: seconds since its start.
        counts: people at these times.
        title: what to write over it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained", facecolor="white")
    ax = figure.subplots()
    colour = tuple(part / 255 for part in UP)
    ax.plot(times, counts, color=colour, marker="o", markersize=3)
    ax.set(xlabel="seconds", ylabel="people", ylim=(0, 1.05 * max(*counts, 1.0)))  # the highest point whole
    ax.set_title(written(shortened(title, 9 * _LETTERS)), fontsize=13, fontfamily=families(title))
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", alpha=0.3)
    return figure


def _pale(image: Image) -> npt.NDArray[np.float64]:
    """The photo, small enough to be drawn, nearly grey so that colours over it can be told."""
    scale = _SHOWN_SIDE / max(image.shape[:2])
    if scale < 1:
        size = max(round(image.shape[1] * scale), 1), max(round(image.shape[0] * scale), 1)
        image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
    grey = image.mean(2, keepdims=True)
    return (grey + (image - grey) * _PALE) / 255
