"""The scale of one patch, as a picture and as text: the `rgb_array` and `ansi` of the environments.

The patch lies on the left pan and the weights are put on the right one, as in Fig. 1 of the paper. A weight that is
removed is put beside the patch instead, which moves the balance by as much. Below is the needle: the Q values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from libra_gym.errors import LibraError
from libra_gym.rendering.canvas import (
    CHOSEN,
    DOWN,
    FADED,
    INK,
    PAPER,
    VALUE,
    WHITE,
    Canvas,
    Colour,
    Image,
    Point,
    action_colour,
    short_number,
)

_HEIGHT, _WIDTH = 360.0, 480.0  # the units in which the scale is laid out
_LEAST_SIDE = 32
_PIVOT: Point = (240.0, 230.0)
_ARM = 138.0  # from the pivot to where a pan stands
_STEM = 24.0  # from the beam up to a pan
_PAN = 64.0  # half of a pan's width
_LOAD = 100.0  # the height that things on a pan may take
_POINTER = 112.0
_MAX_TILT = math.radians(11.0)
_POINTER_GAIN = 2.4  # the pointer swings further than the beam, so that a small error is seen

_DIAL = 31  # characters of the text's dial; odd, so that it has a middle

_BRASS: Colour = (214, 170, 84)
_BRASS_LIGHT: Colour = (240, 209, 140)
_BRASS_DARK: Colour = (158, 116, 42)
_REMOVED_LIGHT: Colour = (206, 128, 120)
_REMOVED_DARK: Colour = (124, 50, 46)
_STEEL: Colour = (92, 102, 116)
_STEEL_LIGHT: Colour = (196, 202, 210)
_SACK: Colour = (176, 140, 98)
_SACK_DARK: Colour = (128, 96, 62)


@dataclass(frozen=True)
class ScaleView:
    """What is seen of one patch's scale after `step` actions.

    Weights, value and truth are in the units of the labels: intervals, or people.
    """

    weights: tuple[float, ...]
    """The weights so far, in order; a negative one was removed."""
    value: float
    """What the scale shows now."""
    truth: float | None
    """What the patch weighs; None where it is hidden, and then the beam rests level and grey."""
    step: int
    max_steps: int
    actions: tuple[str, ...]
    """The labels of all actions: the weights, then `end`."""
    needle: npt.NDArray[np.floating] | None = None
    """The Q value of each action from which `last_action` was chosen; NaN where it was illegal."""
    last_action: int | None = None
    ended: bool = False
    patch_image: Image | None = None
    """The patch, RGB."""
    reward: float | None = None
    tolerance: float | None = None
    """The error up to which the scale counts as balanced; if None, half of the smallest weight."""

    def __post_init__(self) -> None:
        if self.needle is not None and self.needle.shape != (len(self.actions),):
            raise LibraError(
                f"The needle has shape {self.needle.shape}, but there are {len(self.actions)} actions to show."
            )

    @property
    def error(self) -> float | None:
        """Value − truth, where the truth is known."""
        return None if self.truth is None else self.value - self.truth

    @property
    def balanced(self) -> bool:
        """Whether the truth is known and the value is within the tolerance of it."""
        tolerance = min(self.magnitudes) / 2 if self.tolerance is None else self.tolerance
        return self.error is not None and abs(self.error) <= tolerance + 1e-9  # for sums of hundredths

    @property
    def verdict(self) -> str:
        """The state of the balance in a few words."""
        if self.error is None:
            return "truth hidden"
        if self.balanced:
            return "balanced"
        return f"too {'heavy' if self.error > 0 else 'light'} by {short_number(abs(self.error))}"

    @property
    def tilt(self) -> float:
        """How far the beam leans to the side of the weights, −1 … 1.

        It grows with the logarithm of the error, so that one unit is visible and sixty still fit.
        """
        if self.error is None or self.balanced:
            return 0.0
        least, most = min(self.magnitudes), max(self.magnitudes) * self.max_steps
        share = math.log1p(abs(self.error) / least) / math.log1p(most / least)
        return math.copysign(min(share, 1.0), self.error)

    @property
    def magnitudes(self) -> list[float]:
        """How heavy each weight of the pool is, regardless of its sign."""
        return [abs(float(label)) for label in self.actions[:-1]]


def ansi_scale(view: ScaleView) -> str:
    """The scale as a few lines of plain text.

    The star on the dial is the beam's pointer; it stands left of the middle while the value is too light.
    """
    dial = ["-"] * _DIAL
    dial[_DIAL // 2] = "|"
    dial[round((_DIAL - 1) / 2 * (1 + view.tilt))] = "?" if view.truth is None else "*"
    truth = "?" if view.truth is None else short_number(view.truth)
    lines = [
        _headline(view),
        f"  truth {truth}  [{''.join(dial)}]  value {short_number(view.value)}  ({view.verdict})",
        f"  weights: {' '.join(f'{weight:+g}' for weight in view.weights) or 'none'}",
    ]
    if view.needle is not None:
        marks = [">" if action == view.last_action else "" for action in range(len(view.actions))]
        needle = [f"{q:.3g}" if np.isfinite(q) else "illegal" for q in view.needle]
        lines.append("  needle:  " + "  ".join(map("{}{}:{}".format, marks, view.actions, needle)))
    return "\n".join(lines)


def draw_scale(view: ScaleView, size: tuple[int, int] = (360, 480)) -> Image:
    """The scale as an RGB picture of `size` (height, width)."""
    height, width = size
    if min(size) < _LEAST_SIDE:
        raise LibraError(
            f"A picture of {height} × {width} pixels is too small for a scale; {_LEAST_SIDE} is the least."
        )
    image: Image = np.full((height, width, 3), PAPER, np.uint8)
    scale = min(height / _HEIGHT, width / _WIDTH)
    canvas = Canvas(image, scale, ((width - _WIDTH * scale) / 2, (height - _HEIGHT * scale) / 2))
    _draw_header(canvas, view)
    _draw_balance(canvas, view)
    _draw_needle(canvas, view)
    return image


def _headline(view: ScaleView) -> str:
    """How far the weighing is and what happened last."""
    parts = [f"step {view.step} of {view.max_steps}"]
    if view.last_action is not None:
        parts.append(f"action {view.actions[view.last_action]}")
    if view.reward is not None:
        parts.append(f"reward {view.reward:+g}")
    if view.ended:
        parts.append("ended")
    return " | ".join(parts)


def _draw_header(canvas: Canvas, view: ScaleView) -> None:
    canvas.text(_headline(view), (_WIDTH / 2, 18), 10, _STEEL)
    truth = "?" if view.truth is None else short_number(view.truth)
    left, right = _PIVOT[0] - _ARM, _PIVOT[0] + _ARM
    canvas.text("truth", (left - 6, 46), 10, _STEEL, align="right")
    canvas.text(truth, (left, 44), 17, INK, align="left", bold=True)
    canvas.text("value", (right - 6, 46), 10, _STEEL, align="right")
    canvas.text(short_number(view.value), (right, 44), 17, VALUE, align="left", bold=True)
    verdict = VALUE if view.balanced else _STEEL if view.truth is None else DOWN
    canvas.text(view.verdict, (_PIVOT[0], 84), 11, verdict, bold=view.balanced)


def _draw_balance(canvas: Canvas, view: ScaleView) -> None:
    """The stand with its dial, the beam, the pans and what lies on them."""
    x, y = _PIVOT
    metal = VALUE if view.balanced else _STEEL_LIGHT if view.truth is None else _STEEL
    for tick in range(-5, 6):
        angle = tick / 5 * _MAX_TILT * _POINTER_GAIN
        inner = _POINTER + (4 if tick else 2)
        outer = _POINTER + (9 if tick else 13)
        canvas.line([_polar(angle, inner), _polar(angle, outer)], INK if tick == 0 else FADED, 1 if tick else 2)
    tilt = view.tilt * _MAX_TILT
    canvas.polygon([(x - 13, y + 6), (x + 13, y + 6), (x + 34, y + 32), (x - 34, y + 32)], _STEEL)
    canvas.line([(x - 60, y + 33), (x + 60, y + 33)], _STEEL, 4)
    swing = tilt * _POINTER_GAIN
    canvas.polygon([_polar(swing + 0.2, 12), _polar(swing, _POINTER), _polar(swing - 0.2, 12)], metal)

    dx, dy = _ARM * math.cos(tilt), _ARM * math.sin(tilt)
    ends = ((x - dx, y - dy), (x + dx, y + dy))
    for end_x, end_y in ends:
        top = end_y - _STEM
        canvas.line([(end_x, end_y), (end_x, top)], metal, 4)
        rim = [(end_x - _PAN, top - 3), (end_x + _PAN, top - 3), (end_x + _PAN - 12, top + 4)]
        canvas.polygon([*rim, (end_x - _PAN + 12, top + 4)], metal)
    (left_x, left_y), (right_x, right_y) = ends
    canvas.polygon([(left_x, left_y - 3), (x, y - 8), (right_x, right_y - 3), (right_x, right_y + 3), (x, y + 8),
                    (left_x, left_y + 3)], metal)  # fmt: skip
    canvas.disc((x, y), 11, _STEEL)
    canvas.disc((x, y), 5, _BRASS_LIGHT)

    removed = [-weight for weight in view.weights if weight < 0]
    floor = left_y - _STEM - 3
    shift = 23 if removed else 0
    _draw_patch(canvas, view, (left_x - shift, floor))
    _draw_weights(canvas, removed, (left_x + 42, floor), 38, view, removed=True)
    added = [weight for weight in view.weights if weight > 0]
    _draw_weights(canvas, added, (right_x, right_y - _STEM - 3), 2 * _PAN - 16, view, removed=False)


def _polar(angle: float, radius: float) -> Point:
    """The point at a distance from the pivot; the angle is clockwise from straight up."""
    return _PIVOT[0] + radius * math.sin(angle), _PIVOT[1] - radius * math.cos(angle)


def _draw_patch(canvas: Canvas, view: ScaleView, foot: Point) -> None:
    """The patch's picture in a frame, or a sack where there is none."""
    x, y = foot
    if view.patch_image is not None:
        half = 39.0
        canvas.box(x - half, y - 2 * half, x + half, y, INK)
        canvas.paste(view.patch_image, x - half + 2, y - 2 * half + 2, x + half - 2, y - 2)
        return
    canvas.polygon([(x - 34, y), (x - 38, y - 22), (x - 30, y - 46), (x - 10, y - 58), (x + 10, y - 58),
                    (x + 30, y - 46), (x + 38, y - 22), (x + 34, y)], _SACK)  # fmt: skip
    canvas.polygon([(x - 9, y - 58), (x - 18, y - 74), (x, y - 69), (x + 18, y - 74), (x + 9, y - 58)], _SACK)
    canvas.line([(x - 11, y - 58), (x + 11, y - 58)], _SACK_DARK, 4)
    canvas.text("?" if view.truth is None else short_number(view.truth), (x, y - 26), 17, WHITE, bold=True)


def _draw_weights(
    canvas: Canvas, weights: list[float], foot: Point, room: float, view: ScaleView, *, removed: bool
) -> None:
    """Discs piled up in the order in which they came, in more piles than one if they are many; heavier is wider."""
    if not weights:
        return
    brass, red = (_BRASS_LIGHT, _BRASS, _BRASS_DARK, INK), (_REMOVED_LIGHT, DOWN, _REMOVED_DARK, WHITE)
    light, face, dark, ink = red if removed else brass
    piles = math.ceil(len(weights) / 8)
    per_pile = math.ceil(len(weights) / piles)
    pile_room = room / piles
    thick = min(18.0, _LOAD / per_pile)
    widest = min(pile_room - 2, 84.0)
    sizes = sorted({*view.magnitudes, *weights})
    for index, weight in enumerate(weights):
        pile, level = divmod(index, per_pile)
        x = foot[0] + (pile - (piles - 1) / 2) * pile_room
        half = widest / 2 * (0.42 + 0.58 * sizes.index(weight) / max(1, len(sizes) - 1))
        bottom = foot[1] - level * thick
        top = bottom - thick
        canvas.box(x - half, top, x + half, bottom, dark)
        canvas.box(x - half + 1, top + 1, x + half - 1, bottom - 0.5, face)
        canvas.box(x - half + 1, top + 1, x + half - 1, top + 3, light)
        number = short_number(weight).removeprefix("0")
        canvas.text(number, (x, top + thick / 2 + 0.7), min(9.0, 0.62 * thick), ink, bold=True)


def _draw_needle(canvas: Canvas, view: ScaleView) -> None:
    """The actions in a row, the chosen one marked, under bars for their Q values where these are given."""
    left, right, top, bottom = 44.0, _WIDTH - 14.0, 280.0, 334.0
    slot = (right - left) / len(view.actions)
    needle = np.zeros(len(view.actions)) if view.needle is None else view.needle.astype(np.float64)
    legal = np.isfinite(needle)
    bars = np.where(legal, needle, 0.0)
    low, high = min(0.0, bars.min()), max(0.0, bars.max())
    unit = (bottom - top) / ((high - low) or 1.0)
    zero = top + high * unit
    if view.needle is not None:
        canvas.text("Q", (14, (top + bottom) / 2), 12, _STEEL, bold=True)
        canvas.line([(left, zero), (right, zero)], FADED)
        for bound in {low, high} - {0.0}:
            canvas.text(f"{bound:.2g}", (left - 2, zero - bound * unit), 8, _STEEL, align="right")
    row = bottom + 13 if view.needle is not None else (top + bottom) / 2 + 6
    for action, label in enumerate(view.actions):
        colour, x, half = action_colour(label), left + (action + 0.5) * slot, 0.34 * slot
        tip = zero - bars[action] * unit
        if bars[action]:
            canvas.box(x - half, min(tip, zero), x + half, max(tip, zero), colour)
        ink = INK if legal[action] else FADED
        if action == view.last_action:
            canvas.box(x - 0.46 * slot, row - 10, x + 0.46 * slot, row + 10, colour)
            ink = INK if label == "end" else WHITE
            if view.needle is not None:
                canvas.disc((x, tip), 5.5, WHITE)
                canvas.disc((x, tip), 4.2, CHOSEN)
        canvas.text(label.replace("0.", "."), (x, row), min(10.0, 0.36 * slot), ink, bold=action == view.last_action)
