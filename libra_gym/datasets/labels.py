"""Reading dots from the label files of the data sets: MATLAB, JHU's text files, CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.io import loadmat

from libra_gym.counts import Points
from libra_gym.errors import LibraError

_FARTHEST = float(np.finfo(np.float32).max)


def read_mat(path: Path, find: Callable[[dict[str, Any]], ArrayLike]) -> Points:
    """Dots of a MATLAB file; `find` picks them out of its variables."""
    try:
        variables = loadmat(path)
    except Exception as error:  # scipy lets struct, zlib, type and value errors of damaged files through
        raise LibraError(f"The label file {path} is damaged or no MATLAB file; get this file again.") from error
    try:
        return _dots(find(variables))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise LibraError(
            f"The label file {path} holds no N × 2 array of dots where this data set keeps them."
        ) from error


def read_text(path: Path) -> Points:
    """Dots of a text file whose lines begin with x and y, divided by blanks."""
    return _dots([_pair(path, number, line.split()) for number, line in _lines(path)])


def read_csv(path: Path) -> Points:
    """Dots of a CSV file; an empty file means nobody.

    x and y are the columns that a header calls so; without a header, the first two. A header has letters in it: a line
    of numbers that are parted by something else than commas is a mistake.
    """
    try:
        rows = [(number, [field.strip() for field in next(csv.reader([line]))]) for number, line in _lines(path)]
    except csv.Error as error:
        raise LibraError(f"The label file {path} is no CSV file ({error}).") from error
    x, y = 0, 1
    if rows and not any(map(_is_number, rows[0][1])) and any(letter.isalpha() for letter in "".join(rows[0][1])):
        names = [name.strip("\"'").lower() for name in rows.pop(0)[1]]
        if "x" not in names or "y" not in names:
            raise LibraError(f"The header of the label file {path} must name the columns x and y; it is {names}.")
        x, y = names.index("x"), names.index("y")
    return _dots([_pair(path, number, row, x, y) for number, row in rows])


def read_json(path: Path) -> Points:
    """Dots of a JSON file: ``[[x, y], …]``, or the same under the key ``points``."""
    try:
        content = json.loads(_text(path))
        dots = _dots(content["points"] if isinstance(content, dict) else content)
        if not np.isfinite(dots).all():
            raise ValueError("a dot that is nowhere")
        return dots
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise LibraError(f'The label file {path} should be JSON like {{"points": [[x, y], …]}}.') from error


def _dots(values: ArrayLike) -> Points:
    dots = np.asarray(values, np.float32)
    if dots.size == 0:
        return np.zeros((0, 2), np.float32)
    if dots.ndim != 2 or dots.shape[1] < 2:
        raise ValueError(f"dots of shape {dots.shape}")
    return np.ascontiguousarray(dots[:, :2])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise LibraError(f"The label file {path} cannot be read as UTF-8 text: {error}.") from error


def _lines(path: Path) -> list[tuple[int, str]]:
    return [(number, line) for number, line in enumerate(_text(path).splitlines(), start=1) if line.strip()]


def _pair(path: Path, number: int, fields: list[str], x: int = 0, y: int = 1) -> tuple[float, float]:
    try:
        pair = float(fields[x]), float(fields[y])
        if not all(abs(value) < _FARTHEST for value in pair):  # nor is NaN below anything
            raise ValueError("not a place")
    except (IndexError, ValueError) as error:
        where = "begin with" if (x, y) == (0, 1) else "have in its columns"
        raise LibraError(f"Line {number} of the label file {path} should {where} the numbers x and y.") from error
    return pair


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
