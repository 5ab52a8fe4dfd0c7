"""Figures on plain arrays: the paper's weighing figure (Sec. 4.1) and count maps (appendix).

Each function gives a `matplotlib.figure.Figure` that belongs to no window and no global state, so that figures can be
made without a display and from any thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    short_number,
)
from libra_gym.rendering.grid import check_grid, check_weighing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL = 0.55  # inches of a patch in the weighing figure, enough for two lines of 9-point text
_LETTERS: dict[str, Any] = {"fontsize": 9, "fontweight": "bold", "ha": "center", "in_layout": False}


def weighing_figure(
    image: Image,
    actions: npt.NDArray[np.integer],
    values: npt.NDArray[np.number],
    truth: npt.NDArray[np.number] | None,
    q: npt.NDArray[np.floating],
    pool_labels: Sequence[str],
    *,
    patch: tuple[int, int] = (0, 0),
) -> Figure:
    """How each patch of a region is weighed, step by step, and what one patch's needle says meanwhile.

    Args:
        image: the region, RGB.
        actions: the action of each patch at each step, (steps, rows, cols); −1 where the weighing was over.
        values: the value after that action, (steps, rows, cols).
        truth: what each patch weighs, (rows, cols), or None where it is unknown.
        q: the Q values of `patch` before each action, (steps, actions); NaN where illegal or over.
        pool_labels: the labels of the actions, `end` last.
        patch: the row and column of the patch whose Q values are shown; it is framed in red.
    """
    from matplotlib.figure import Figure

    steps, rows, cols = check_weighing(image, actions, values)
    if q.shape != (steps, len(pool_labels)):
        raise LibraError(f"The Q values have shape {q.shape}, but the figure needs {(steps, len(pool_labels))}.")
    chosen = actions[:, patch[0], patch[1]]
    weighed = int((chosen >= 0).sum())
    if weighed == 0:
        raise LibraError(f"Patch {patch} was never weighed, so it has no Q values to show; choose another one.")
    panels = steps + (1 if truth is None else 2)
    panel_rows = math.ceil(panels / 5)
    panel_cols = math.ceil(panels / panel_rows)
    q_cols = min(weighed, max(1, 80 // len(pool_labels)))  # so that the labels of the actions stay legible
    q_rows = math.ceil(weighed / q_cols)
    width = max(panel_cols * (cols * _CELL + 0.25), 10.0)
    heights = [panel_rows * (rows * _CELL + 0.45), q_rows * 1.9]
    figure = Figure(figsize=(width, sum(heights)), layout="constrained", facecolor="white")
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
    for ax in axes[:panels]:
        _frame_patch(ax, patch)

    top.supxlabel("blue adds a weight, red removes one, E ends; green is the value so far", fontsize=9)
    bottom.suptitle(f"Q values of the framed patch (row {patch[0]}, column {patch[1]})", fontsize=10)
    needles = bottom.subplots(q_rows, q_cols, squeeze=False, sharey=True).ravel()
    for ax in needles[weighed:]:
        ax.set_axis_off()
    for step, ax in enumerate(needles[:weighed]):
        _plot_needle(ax, q[step], int(chosen[step]), pool_labels, f"t = {step}")
    return figure


def count_map_figure(
    image: Image,
    true_map: npt.NDArray[np.number] | None,
    estimated_map: npt.NDArray[np.number],
    totals: tuple[float | None, float],
) -> Figure:
    """A photo beside its true and its estimated count map, with the totals in the titles.

    Args:
        image: the photo, RGB.
        true_map: people in each patch, (rows, cols), or None where they are unknown.
        estimated_map: the estimate of the same.
        totals: the true and the estimated number of people in the photo; the true one may be None.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    rows, cols = estimated_map.shape
    check_grid(image, rows, cols)
    true_total, estimated_total = totals
    truth = "truth" if true_total is None else f"truth: {true_total:,.0f}"
    maps = [(true_map, truth)] if true_map is not None else []
    maps.append((estimated_map, f"estimate: {estimated_total:,.1f}"))
    height, width = image.shape[:2]
    panel = 4.2
    figure = Figure(
        figsize=(panel * (1 + len(maps)) + 0.9, panel * height / width + 0.4), layout="compressed", facecolor="white"
    )
    axes = figure.subplots(1, 1 + len(maps))
    # Most patches hold few people and some hold many: a square-root scale shows both.
    norm = PowerNorm(0.5, vmin=0, vmax=max(1.0, *(float(counts.max()) for counts, _ in maps)))
    axes[0].imshow(image)
    axes[0].set_title("photo")
    for ax, (counts, title) in zip(axes[1:], maps):
        extent = (0, cols * PATCH, rows * PATCH, 0)
        shown = ax.imshow(counts, norm=norm, cmap="inferno", extent=extent, interpolation="nearest")
        ax.set(title=title, xlim=(0, width), ylim=(height, 0))
    for ax in axes:
        ax.set_axis_off()
    figure.colorbar(shown, cax=axes[-1].inset_axes((1.02, 0, 0.04, 1)), label="people in a patch")
    return figure


def _rgb(colour: Colour) -> tuple[float, float, float]:
    return colour[0] / 255, colour[1] / 255, colour[2] / 255


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
    ax.add_patch(Rectangle((col, row), 1, 1, fill=False, edgecolor=_rgb(CHOSEN), linewidth=2, clip_on=False, zorder=3))


def _write_operator(ax: Axes, row: int, col: int, label: str) -> None:
    """The action in the upper half of a patch, on its colour."""
    text, ink = ("E", INK) if label == "end" else (label, WHITE)
    box = {"boxstyle": "round,pad=0.18", "facecolor": _rgb(action_colour(label)), "edgecolor": "none"}
    ax.text(col + 0.5, row + 0.29, text, color=_rgb(ink), bbox=box, va="center_baseline", **_LETTERS)


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
        color=_rgb(colour),
        va="center",
        path_effects=halo,
        alpha=alpha,
        **_LETTERS,
    )


def _plot_needle(ax: Axes, q: npt.NDArray[np.floating], chosen: int, labels: Sequence[str], title: str) -> None:
    """The Q values of one step, the chosen one with a red point."""
    places = np.arange(len(labels))
    ax.bar(places, np.nan_to_num(q), color=[_rgb(action_colour(label)) for label in labels], width=0.75)
    ax.axhline(0, color=_rgb(FADED), linewidth=0.8)
    ax.plot(chosen, q[chosen], "o", color=_rgb(CHOSEN), markersize=6, markeredgecolor="white", zorder=3)
    ax.set_title(f"{title}: {labels[chosen]}", fontsize=9)
    ax.set_xticks(places, [label.replace("0.", ".") for label in labels], rotation=90, fontsize=7)
    for tick, legal in zip(ax.get_xticklabels(), np.isfinite(q)):
        tick.set_color(_rgb(INK if legal else FADED))
    ax.tick_params(axis="y", labelsize=7)
    ax.tick_params(length=2)
    ax.spines[["top", "right", "bottom"]].set_visible(False)
