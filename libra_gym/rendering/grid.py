"""Whether arrays of a weighing fit each other and the photo that they are drawn on."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from libra_gym.counts import PATCH
from libra_gym.errors import LibraError
from libra_gym.rendering.canvas import Image


def check_weighing(
    image: Image, actions: npt.NDArray[np.integer], values: npt.NDArray[np.number]
) -> tuple[int, int, int]:
    """The (steps, rows, cols) of a weighing, once its arrays are known to fit each other and the photo."""
    if actions.ndim != 3 or actions.shape != values.shape:
        raise LibraError(
            f"Actions of shape {actions.shape} and values of shape {values.shape} must both be (steps, rows, cols)."
        )
    steps, rows, cols = actions.shape
    check_grid(image, rows, cols)
    return steps, rows, cols


def check_grid(image: Image, rows: int, cols: int) -> None:
    """Raise if a picture is not covered by exactly these rows and columns of patches."""
    height, width = image.shape[:2]
    expected = math.ceil(height / PATCH), math.ceil(width / PATCH)
    if (rows, cols) != expected:
        raise LibraError(f"A picture of {height} × {width} pixels has {expected} patches, not {(rows, cols)}.")
