"""A whole photo being weighed, step by step, as a GIF or MP4: the paper's weighing figure (Sec. 4.1) in motion."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow

from libra_gym.counts import PATCH
from libra_gym.errors import LibraError
from libra_gym.rendering.canvas import (
    INK,
    PAPER,
    WHITE,
    Canvas,
    Colour,
    Image,
    action_colour,
    short_number,
)
from libra_gym.rendering.grid import check_weighing

_SIDE = 1280  # pixels that the longer side of the photo takes, as far as the bounds of a cell allow
_CELL = (20, 48)  # pixels of a patch's side: at least what a number needs, at most what looks well
_HEADER = 40
_LETTER = 9  # pixels that a letter of the header takes, about
_RATE = 10.0  # frames of an MP4 per second
_CODEC = "mp4v"  # MPEG-4: the wheels of OpenCV have no H.264, and their VP9 takes a second for a frame
_LIT: Colour = (120, 235, 150)  # the value's green, light enough for a darkened photo


def animate_weighing(
    image: Image,
    actions: npt.NDArray[np.integer],
    values: npt.NDArray[np.number],
    pool_labels: Sequence[str],
    path: str | PathLike[str],
    *,
    totals: Sequence[float] | None = None,
    seconds: float = 0.9,
) -> None:
    """Write a GIF, or an MP4, in which each patch shows its operator and its value at every step.

    The first frame is the plain photo. Patches on the scale are darker than those that have ended; of the latter only
    values other than 0 are written.

    Args:
        image: the photo, RGB.
        actions: the action of each patch at each step, (steps, rows, cols); −1 where the weighing was over.
        values: the value after that action, (steps, rows, cols).
        pool_labels: the labels of the actions, `end` last.
        path: where the animation goes; its ending, `.gif` or `.mp4`, says as what.
        totals: the photo's estimated count after each step, for the header.
        seconds: how long a step is shown; the last one is shown three times as long.
    """
    write = _WRITERS.get(Path(path).suffix.lower())
    if write is None:
        raise LibraError(f"An animation is a .gif or an .mp4, and {str(path)!r} is neither; name one of them.")
    steps, rows, cols = check_weighing(image, actions, values)
    if totals is not None and len(totals) != steps:
        raise LibraError(f"There are {len(totals)} totals for {steps} steps; give one for each step.")
    cell = int(np.clip(_SIDE // max(rows, cols), *_CELL))
    height, width = (round(side * cell / PATCH) for side in image.shape[:2])
    photo: Image = np.zeros((rows * cell, cols * cell, 3), np.uint8)
    photo[:height, :width] = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)

    frames = [_with_header(photo, "photo")]
    for step in range(steps):
        weighed = int((actions[step] >= 0).sum())
        headline = f"t = {step}" if totals is None else f"t = {step}    count {totals[step]:,.0f}"
        patches = f"    {weighed} of {rows * cols} patches on the scale"
        if _LETTER * len(headline + patches) < photo.shape[1]:  # a small photo has room for the count only
            headline += patches
        frames.append(_with_header(_draw_step(photo, cell, actions[step], values[step], pool_labels), headline))

    lengths = [seconds] * steps + [3 * seconds]
    write(frames, lengths, Path(path))


def _write_gif(frames: Sequence[Image], lengths: Sequence[float], path: Path) -> None:
    from libra_gym.features.storage import write_whole

    # Without dithering the flat colours stay flat, and the file is smaller by a third.
    pictures = [Pillow.fromarray(frame).quantize(128, dither=Pillow.Dither.NONE) for frame in frames]
    durations = [round(1000 * length) for length in lengths]
    file = BytesIO()
    pictures[0].save(file, format="GIF", save_all=True, append_images=pictures[1:], duration=durations, loop=0)
    write_whole(path, file.getvalue())


def _write_mp4(frames: Sequence[Image], lengths: Sequence[float], path: Path) -> None:
    """Frames of any length in time as a film of a fixed rate."""
    from libra_gym.features.storage import write_whole

    height, width = (side + side % 2 for side in frames[0].shape[:2])  # codecs want even sides
    with TemporaryDirectory() as directory:
        partial = Path(directory) / "film.mp4"
        film = cv2.VideoWriter(str(partial), cv2.VideoWriter.fourcc(*_CODEC), _RATE, (width, height))
        if not film.isOpened():
            raise LibraError(f"This build of OpenCV cannot write {path.name} (codec {_CODEC}); write a GIF.")
        for frame, length in zip(frames, lengths):
            even: Image = np.full((height, width, 3), PAPER, np.uint8)
            even[: frame.shape[0], : frame.shape[1]] = frame
            for _ in range(max(round(length * _RATE), 1)):
                film.write(cv2.cvtColor(even, cv2.COLOR_RGB2BGR))
        film.release()
        write_whole(path, partial.read_bytes())


_WRITERS = {".gif": _write_gif, ".mp4": _write_mp4}


def _draw_step(
    photo: Image,
    cell: int,
    actions: npt.NDArray[np.integer],
    values: npt.NDArray[np.number],
    pool_labels: Sequence[str],
) -> Image:
    """The photo, darkened where patches are on the scale, with operators above and values below."""
    live = np.kron(actions >= 0, np.ones((cell, cell), bool))[..., None]
    canvas = Canvas(np.where(live, photo // 3, photo // 2), cell)
    for row, col in np.ndindex(actions.shape):
        value, x = short_number(float(values[row, col])), col + 0.5
        action = int(actions[row, col])
        if action >= 0:
            label = pool_labels[action]
            canvas.box(col + 0.06, row + 0.06, col + 0.94, row + 0.5, action_colour(label))
            ink = INK if label == "end" else WHITE
            operator = "E" if label == "end" else label.replace("0.", ".")
            canvas.text(operator, (x, row + 0.28), _letter(operator), ink, bold=True)
            canvas.text(value, (x, row + 0.74), _letter(value), _LIT, bold=True)
        elif values[row, col]:
            canvas.text(value, (x, row + 0.74), _letter(value), _LIT)
    return canvas.image


def _letter(text: str) -> float:
    """The height of letters, in cells, with which a text fits into its cell."""
    return min(0.3, 1.08 / len(text))


def _with_header(photo: Image, headline: str) -> Image:
    header: Image = np.full((_HEADER, photo.shape[1], 3), PAPER, np.uint8)
    Canvas(header).text(headline, (14, _HEADER / 2), 15, align="left", bold=True)
    return np.vstack([header, photo])
