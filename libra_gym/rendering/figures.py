"""Figures on plain arrays: the paper's weighing figure (Sec. 4.1) and count maps (appendix).

Each function gives a `matplotlib.figure.Figure` that belongs to no window and no global state, so that figures can be
made without a display and from any thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from libra_gym.counts import PATCH
from libra_gym.errors import LibraError
from libra_gym.rendering.canvas import (
    CHOSEN,
    FADED,
    INK,
    VALUE,
    WHITE,
    Colour,
    Image,
    action_colour,
    rgb,
    short_number,
)
from libra_gym.rendering.grid import check_grid, check_weighing
from libra_gym.rendering.names import families, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL = 0.55  # inches of a patch in the weighing figure, enough for two lines of 9-point text
_BAR = 0.165  # inches of an action in the needle's panels, enough for a line of 9-point text on its side
_LETTERS: dict[str, Any] = {"fontsize": 9, "fontweight": "bold", "ha": "center", "in_layout": False}
_PANEL = 4.2  # inches of the longer side of a photo among count maps
_LEAST_WIDTH, _LEAST_HEIGHT = 1.5, 1.6  # inches that are kept for narrow and for low ones
_GAP, _LINE, _SCALE_ROOM = 0.12, 0.32, 0.85  # inches between panels, of a line of title, and of the colour scale


def weighing_figure(
    image: Image,
    actions: npt.NDArray[np.integer],
    values: npt.NDArray[np.number],
    truth: npt.NDArray[np.number] | None,
    q: npt.NDArray[np.floating] | None,
    pool_labels: Sequence[str],
    *,
    patch: tuple[int, int] = (0, 0),
    corner: tuple[int, int] = (0, 0),
    needle: str = "Q values",
) -> Figure:
    """How each patch of a region is weighed, step by step, and what one patch's needle says meanwhile.

    Args:
        image: the region, RGB.
        actions: the action of each patch at each step, (steps, rows, cols); −1 where the weighing was over.
        values: the value after that action, (steps, rows, cols).
        truth: what each patch weighs, (rows, cols), or None where it is unknown.
        q: the Q values of `patch` before each action, (steps, actions), NaN where illegal or over; None where the agent
            has none.
        pool_labels: the labels of the actions, `end` last.
        patch: the row and column, in the region, of the patch whose Q values are shown; it is framed in red.
        corner: where in its photo the region begins, in rows and columns of patches; the title counts from the photo's.
        needle: what the numbers in `q` are called.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    steps, rows, cols = check_weighing(image, actions, values)
    if q is not None and q.shape != (steps, len(pool_labels)):
        raise LibraError(f"The Q values have shape {q.shape}, but the figure needs {(steps, len(pool_labels))}.")
    chosen = actions[:, patch[0], patch[1]]
    weighed = int((chosen >= 0).sum())
    if weighed == 0:
        raise LibraError(f"Patch {patch} was never weighed, so it has no Q values to show; choose another one.")
    panels = steps + (1 if truth is None else 2)
    panel_rows = math.ceil(panels / 5)
    panel_cols = math.ceil(panels / panel_rows)
    width = max(panel_cols * (cols * _CELL + 0.25), 10.0)
    fitting = max(1, int(width / (_BAR * len(pool_labels) + 0.35)))
    q_cols = math.ceil(steps / math.ceil(steps / fitting))
    q_rows = 0 if q is None else math.ceil(weighed / q_cols)
    heights = [panel_rows * (rows * _CELL + 0.45) + 0.35, max(q_rows * 2.1 + 0.3, 0.01)]
    layout = ConstrainedLayoutEngine(h_pad=0.08)
    figure = Figure(figsize=(width, sum(heights)), layout=layout, facecolor="white")
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=heights).ravel()

    axes = top.subplots(panel_rows, panel_cols, squeeze=False).ravel()
    for ax in axes:
        ax.set_axis_off()
    _show_photo(axes[0], image, rows, cols, "region", fade=0.0)
    for step in range(steps):
        ax = axes[step + 1]
        _show_photo(ax, image, rows, cols, f"t = {step}", fade=0.6)
        for row, col in np.ndindex(rows, cols):
            action = int(actions[step, row, col])
            if action >= 0:
                _write_operator(ax, row, col, pool_labels[action])
            _write_value(ax, row, col, float(values[step, row, col]), VALUE, alpha=1.0 if action >= 0 else 0.5)
    if truth is not None:
        _show_photo(axes[steps + 1], image, rows, cols, "truth", fade=0.6)
        for row, col in np.ndindex(rows, cols):
            _write_value(axes[steps + 1], row, col, float(truth[row, col]), INK, middle=True)
    top.supxlabel("blue adds a weight, red removes one, E ends; green is the value so far", fontsize=9)
    if q is None:
        return figure

    for ax in axes[:panels]:
        _frame_patch(ax, patch)
    row, col = corner[0] + patch[0], corner[1] + patch[1]
    bottom.suptitle(f"{needle} of the framed patch (row {row}, column {col} of the photo)", fontsize=10)
    needles = bottom.subplots(q_rows, q_cols, squeeze=False, sharey=True).ravel()
    for ax in needles[weighed:]:
        ax.set_axis_off()
    for step, ax in enumerate(needles[:weighed]):
        _plot_needle(ax, q[step], int(chosen[step]), pool_labels, f"t = {step}")
    return figure


@dataclass(frozen=True)
class CountMaps:
    """A photo, the people in each of its patches, and how many were counted there."""

    image: Image
    """The photo, RGB."""
    true_map: npt.NDArray[np.number] | None
    """People in each patch, (rows, cols), or None where they are unknown."""
    estimated_map: npt.NDArray[np.number]
    """The estimate of the same."""
    totals: tuple[float | None, float]
    """The true and the estimated number of people in the photo; the true one may be None."""
    title: str = ""
    """Written above the photo and its maps, where there are several."""

    def __post_init__(self) -> None:
        rows, cols = self.estimated_map.shape
        check_grid(self.image, rows, cols)


def count_map_figure(
    image: Image,
    true_map: npt.NDArray[np.number] | None,
    estimated_map: npt.NDArray[np.number],
    totals: tuple[float | None, float],
) -> Figure:
    """A photo beside its true and its estimated count map, with the totals in the titles.

    The arguments are those of `CountMaps`.
    """
    return gallery_figure([CountMaps(image, true_map, estimated_map, totals)])


def gallery_figure(cases: Sequence[CountMaps], title: str = "") -> Figure:
    """Photos beside their true and their estimated count maps, one below the other."""
    from matplotlib.figure import Figure

    sizes = [_slot_size(case.image) for case in cases]
    panels = 3 if any(case.true_map is not None for case in cases) else 2
    width = _GAP + panels * (max(width for width, _ in sizes) + _GAP) + _SCALE_ROOM
    heights = [_LINE * (2 if case.title else 1) + height + _GAP for case, (_, height) in zip(cases, sizes)]
    top = sum(heights) + (0.5 if title else 0.0)
    figure = Figure(figsize=(width, top), facecolor="white")
    if title:
        heading = figure.text(0.5, 1 - 0.28 / top, written(title), fontsize=14, ha="center", va="center")
        heading.set(fontweight="bold", fontfamily=families(title))
    foot = sum(heights)
    for case, size, height in zip(cases, sizes, heights):
        foot -= height
        _draw_maps(figure, case, size, foot + _GAP)
    return figure


def _panel_size(image: Image) -> tuple[float, float]:
    """Width and height in inches that a photo takes in a gallery."""
    height, width = image.shape[:2]
    return _PANEL * width / max(height, width), _PANEL * height / max(height, width)


def _slot_size(image: Image) -> tuple[float, float]:
    """Width and height in inches that are kept for a photo: room for its title, and for the words of the scale."""
    width, height = _panel_size(image)
    return max(width, _LEAST_WIDTH), max(height, _LEAST_HEIGHT)


def _draw_maps(figure: Figure, case: CountMaps, slot: tuple[float, float], foot: float) -> None:
    """A photo and its count maps on one colour scale, their slots' lower edge `foot` inches above the figure's."""
    from matplotlib.colors import PowerNorm

    rows, cols = case.estimated_map.shape
    true_total, estimated_total = case.totals
    truth = "truth" if true_total is None else f"truth: {true_total:,.0f}"
    maps = [(case.true_map, truth)] if case.true_map is not None else []
    maps.append((case.estimated_map, f"estimate: {estimated_total:,.1f}"))
    height, width = case.image.shape[:2]
    across, up = figure.get_size_inches()

    size = _panel_size(case.image)

    def add_axes(left: float, wide: float, high: float) -> Axes:
        return figure.add_axes((left / across, (foot + (slot[1] - high) / 2) / up, wide / across, high / up))

    lefts = [_GAP + panel * (slot[0] + _GAP) for panel in range(2 + len(maps))]
    axes = [add_axes(left + (slot[0] - size[0]) / 2, *size) for left in lefts[:-1]]
    # Most patches hold few people and some hold many: a square-root scale shows both.
    norm = PowerNorm(0.5, vmin=0, vmax=max(1.0, *(float(counts.max()) for counts, _ in maps)))
    axes[0].imshow(case.image, aspect="auto")
    axes[0].set_title("photo", fontsize=11)
    for ax, (counts, title) in zip(axes[1:], maps):
        extent = (0, cols * PATCH, rows * PATCH, 0)
        shown = ax.imshow(counts, norm=norm, cmap="inferno", extent=extent, interpolation="nearest", aspect="auto")
        ax.set(xlim=(0, width), ylim=(height, 0))
        ax.set_title(title, fontsize=11)
    for ax in axes:
        ax.set_axis_off()
    figure.colorbar(shown, cax=add_axes(lefts[-1], 0.15, slot[1]), label="people in a patch")
    if case.title:
        place = (_GAP / across, (foot + slot[1] + 1.35 * _LINE) / up)
        family = families(case.title)
        figure.text(*place, written(case.title), fontsize=11, fontweight="bold", fontfamily=family, va="center")


def _show_photo(ax: Axes, image: Image, rows: int, cols: int, title: str, fade: float) -> None:
    """The region in units of patches, faded towards white, with the grid of patches on it."""
    from matplotlib.patches import Rectangle

    height, width = image.shape[:2]
    ax.add_patch(Rectangle((0, 0), cols, rows, color="0.93", zorder=-1))
    ax.imshow(image * (1 - fade) / 255 + fade, extent=(0, width / PATCH, height / PATCH, 0), interpolation="lanczos")
    ax.set(xlim=(0, cols), ylim=(rows, 0))
    ax.set_title(title, fontsize=10)
    ax.hlines(range(rows + 1), 0, cols, colors="white", linewidth=1)
    ax.vlines(range(cols + 1), 0, rows, colors="white", linewidth=1)


def _frame_patch(ax: Axes, patch: tuple[int, int]) -> None:
    from matplotlib.patches import Rectangle

    row, col = patch
    ax.add_patch(Rectangle((col, row), 1, 1, fill=False, edgecolor=rgb(CHOSEN), linewidth=2, clip_on=False, zorder=3))


def _write_operator(ax: Axes, row: int, col: int, label: str) -> None:
    """The action in the upper half of a patch, on its colour."""
    text, ink = ("E", INK) if label == "end" else (label, WHITE)
    box = {"boxstyle": "round,pad=0.18", "facecolor": rgb(action_colour(label)), "edgecolor": "none"}
    ax.text(col + 0.5, row + 0.29, text, color=rgb(ink), bbox=box, va="center_baseline", **_LETTERS)


def _write_value(
    ax: Axes, row: int, col: int, value: float, colour: Colour, *, middle: bool = False, alpha: float = 1.0
) -> None:
    """A number in the lower half of a patch, or in its middle, with a white halo."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2.5, foreground="white")]
    height = row + (0.5 if middle else 0.75)
    ax.text(
        col + 0.5,
        height,
        short_number(value),
        color=rgb(colour),
        va="center",
        path_effects=halo,
        alpha=alpha,
        **_LETTERS,
    )


def _plot_needle(ax: Axes, q: npt.NDArray[np.floating], chosen: int, labels: Sequence[str], title: str) -> None:
    """The Q values of one step, the chosen one with a red point."""
    places = np.arange(len(labels))
    ax.bar(places, np.nan_to_num(q), color=[rgb(action_colour(label)) for label in labels], width=0.75)
    ax.axhline(0, color=rgb(FADED), linewidth=0.8)
    ax.plot(chosen, q[chosen], "o", color=rgb(CHOSEN), markersize=6, markeredgecolor="white", zorder=3)
    best = round(float(q[chosen]), 2 if abs(q[chosen]) >= 0.1 else 4) + 0.0
    ax.set_title(f"{title}: {labels[chosen]} ({best:g})", fontsize=9)
    ax.set_xticks(places, [label.replace("0.", ".") for label in labels], rotation=90, fontsize=9)
    for tick, legal in zip(ax.get_xticklabels(), np.isfinite(q)):
        tick.set_color(rgb(INK if legal else FADED))
    ax.tick_params(axis="y", labelsize=9)
    ax.tick_params(length=2)
    ax.spines[["top", "right", "bottom"]].set_visible(False)
