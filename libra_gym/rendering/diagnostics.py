"""Figures of how an agent weighs a whole bank: its actions, its mistakes, its needle, and its counts.

Like those of `figures`, they take plain arrays and give a `matplotlib.figure.Figure` that belongs to no window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from libra_gym.errors import LibraError
from libra_gym.rendering.canvas import CHOSEN, DOWN, END, FADED, INK, UP, VALUE, Colour, action_colour, rgb
from libra_gym.rendering.names import families, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Ints = npt.NDArray[np.integer]
Floats = npt.NDArray[np.floating]

_FEW = 20  # a mean over fewer actions than this says little, and is not drawn
_NAMED = 3  # images whose names stand in the scatter plot


def actions_figure(actions: Ints, optimal: Ints, pool_labels: Sequence[str]) -> Figure:
    """How often each action is taken at each step, and how often the guide would take it.

    Args:
        actions: the action of each patch at each step, (patches, steps); −1 where the weighing was over.
        optimal: the optimal action (Eq. 11) for the same patches with the same weights on the pan, (patches, steps).
        pool_labels: the labels of the actions, `end` last.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    patches, steps = actions.shape
    number = len(pool_labels)
    panel = 0.25 * number + 0.7
    cols = max(1, min(4, steps, int(13 / panel)))
    rows = math.ceil(steps / cols)
    size = (max(cols * panel, 9.0), rows * 2.3 + 0.9)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    figure.suptitle(f"Actions at each step, as shares of the patches on the scale ({patches:,} patches)", fontsize=12)
    axes = figure.subplots(rows, cols, squeeze=False, sharey=True)
    places = np.arange(number)
    for step, ax in enumerate(axes.ravel()):
        if step >= steps:
            ax.set_axis_off()
            continue
        live = actions[:, step] >= 0
        on_scale = int(live.sum())
        share, wanted = (np.bincount(a[live, step], minlength=number) / max(on_scale, 1) for a in (actions, optimal))
        ax.bar(places, share, color=[rgb(action_colour(label)) for label in pool_labels], width=0.78)
        ax.hlines(wanted, places - 0.46, places + 0.46, colors=[rgb(INK)], linewidth=1.8)
        ax.set_title(f"t = {step}: {on_scale:,} patches", fontsize=10)
        ax.set_xticks(places, [label.replace("0.", ".") for label in pool_labels], rotation=90, fontsize=9)
        ax.tick_params(axis="y", labelsize=9)
        _bare(ax)
    axes[0, 0].yaxis.set_major_formatter(_percent())
    marks: list[Any] = [_swatch(UP, "adds a weight"), _swatch(DOWN, "removes a weight"), _swatch(END, "ends")]
    marks.append(Line2D([], [], color=rgb(INK), linewidth=1.8, label="what the optimal action (Eq. 11) would be"))
    figure.legend(handles=marks, loc="outside lower center", ncols=4, fontsize=10, frameon=False)
    return figure


def confusion_figure(truth: Ints, estimate: Ints, people: Sequence[float]) -> Figure:
    """As which interval the patches of each true interval are weighed.

    Args:
        truth: the true interval of each patch, (patches,).
        estimate: the interval it was weighed as, (patches,).
        people: what each interval counts for.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    intervals = len(people)
    table = np.zeros((intervals, intervals))
    np.add.at(table, (estimate, truth), 1)
    number = table.sum(0)
    share = np.divide(table, number, out=np.full_like(table, np.nan), where=number > 0)
    exact, near = (float((np.abs(truth - estimate) <= reach).mean()) for reach in (0, 2))

    figure = Figure(figsize=(8.4, 8.6), layout="constrained", facecolor="white")
    counted, ax = figure.subplots(2, 1, height_ratios=(1, 6), sharex=True)
    figure.suptitle(
        f"Intervals of {len(truth):,} patches: {exact:.1%} are exact, {near:.1%} within two intervals", fontsize=12
    )
    counted.bar(np.arange(intervals), number, color=rgb(FADED), width=0.9)
    counted.set_yscale("log")
    counted.set_ylabel("patches")
    counted.spines[["top", "right"]].set_visible(False)
    # Intervals are many and shares mostly small: a square-root scale shows them.
    shown = ax.imshow(share, norm=PowerNorm(0.5, 0, 1), cmap="viridis", origin="lower", aspect="auto")
    ax.plot([0, intervals - 1], [0, intervals - 1], color="0.7", linewidth=1, linestyle=(0, (4, 4)))
    ticks = range(0, intervals, max(1, round(intervals / 10 / 5) * 5))
    labels = [f"{tick}\n{_people(people[tick])}" for tick in ticks]
    ax.set_xticks(ticks, labels)
    ax.set_yticks(ticks, [f"{tick} ({_people(people[tick])})" for tick in ticks])
    ax.set_xlabel("true interval, and the people it counts for (white: no patches)")
    ax.set_ylabel("weighed as interval (people)")
    bar = figure.colorbar(shown, ax=ax, label="share of the patches of a true interval", pad=0.02)
    bar.ax.yaxis.set_major_formatter(_percent())
    return figure


def calibration_figure(
    error: Floats, actions: Ints, q: Floats, returns: Floats, pool_labels: Sequence[str], *, unit: str = "intervals"
) -> Figure:
    """Whether the needle is right: Q values beside what they should foretell, by the true remaining error.

    All arrays have one entry per action that was taken.

    Args:
        error: the truth less the value before the action, in units of the scale: above 0 where the pan is too light.
        actions: the action.
        q: its Q value.
        returns: the discounted rewards from the action to the end.
        pool_labels: the labels of the actions, `end` last.
        unit: what the error is measured in.
    """
    from matplotlib.figure import Figure

    if not len(error) == len(actions) == len(q) == len(returns):
        raise LibraError("The calibration needs one error, one action, one Q value and one return for each action.")
    figure = Figure(figsize=(15.5, 5.0), layout="constrained", facecolor="white")
    figure.suptitle(f"The needle against the true remaining error ({len(error):,} actions)", fontsize=12)
    pointing, falling, reliable = figure.subplots(1, 3)
    edges = _error_edges(error)
    _plot_pointing(pointing, error, actions, pool_labels, edges)
    _plot_falling(falling, error, q, returns, edges)
    _plot_reliability(reliable, q, returns)
    for ax in (pointing, falling):
        ax.axvline(0, color=rgb(INK), linewidth=0.8)
        ax.set_xlabel(f"true remaining error: truth − value, in {unit}")
    return figure


def scatter_figure(people: Floats, counts: Floats, names: Sequence[str]) -> Figure:
    """Counted against true people of each image; the images with the greatest errors are named."""
    from matplotlib.figure import Figure

    error = counts - people
    figure = Figure(figsize=(7.0, 7.0), layout="constrained", facecolor="white")
    ax = figure.subplots()
    mae, rmse = np.abs(error).mean(), math.sqrt(np.square(error).mean())
    ax.set_title(
        f"People in {len(people):,} images: MAE {mae:,.1f}, RMSE {rmse:,.1f}, bias {error.mean():+,.1f}", fontsize=11
    )
    both = np.concatenate([people, counts])
    logarithmic = bool(both.min() > 0 and both.max() > 20 * both.min())
    low, high = (both.min() / 1.25, both.max() * 1.25) if logarithmic else (0.0, max(both.max() * 1.05, 1.0))
    if logarithmic:
        ax.set(xscale="log", yscale="log")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter("{x:,.0f}")
    ax.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    ax.plot([low, high], [low, high], color=rgb(FADED), linewidth=1.2, label="a perfect count")
    ax.plot(people, counts, "o", color=rgb(UP), markersize=6, alpha=0.65, markeredgecolor="white", label="an image")
    worst = np.argsort(-np.abs(error), kind="stable")[:_NAMED]
    for rank, place in enumerate(worst, start=1):
        ax.annotate(str(rank), (people[place], counts[place]), (6, -3), textcoords="offset points", fontsize=10)
    named = "\n".join(
        f"{rank}  {written(names[place])}: {error[place]:+,.0f}" for rank, place in enumerate(worst, start=1)
    )
    place = {"transform": ax.transAxes, "ha": "right", "va": "bottom"}
    ax.text(0.98, 0.02, f"greatest errors\n{named}", fontsize=9, fontfamily=families(named), **place)
    ax.set_xlabel("people there are")
    ax.set_ylabel("people counted")
    ax.grid(color="0.92")
    ax.set_axisbelow(True)
    ax.legend(loc="upper left", fontsize=10, frameon=False)
    return figure


def causes_figure(classes: Sequence[str], errors: Floats, causes: Mapping[str, tuple[int, float]]) -> Figure:
    """Where errors come from: people too many and too few by density, and the failures by their cause.

    Args:
        classes: what the classes of patches are called.
        errors: counted less true people in the patches of each class, (images, classes).
        causes: for each cause, the greatest first, its images and the sum of their errors.
    """
    from matplotlib.figure import Figure

    height = max(4.6, 1.8 + 0.5 * len(causes))
    figure = Figure(figsize=(13.5, height), layout="constrained", facecolor="white")
    density, failures = figure.subplots(1, 2)
    places = np.arange(len(classes))
    for side, colour, name in ((1, UP, "too many"), (-1, DOWN, "too few")):
        sums = np.maximum(errors * side, 0).mean(0) * side
        bars = density.bar(places, sums, color=rgb(colour), width=0.75, label=name)
        density.bar_label(
            bars, [f"{total:+,.1f}" if abs(total) >= 0.05 else "" for total in sums], fontsize=9, padding=2
        )
    density.axhline(0, color=rgb(INK), linewidth=0.8)
    density.margins(y=0.12)
    density.set_xticks(places, [name.removeprefix("with ") for name in classes])
    density.set_xlabel("true number of people in the patch")
    density.set_ylabel("people per image")
    density.set_title(f"People too many and too few, by how full the patch is ({len(errors):,} images)", fontsize=11)
    density.legend(loc="best", fontsize=9, framealpha=0.9)
    _bare(density)

    sums = np.array([total for _, total in causes.values()])
    colours = [rgb(UP if cause.startswith("too many") else DOWN) for cause in causes]
    bars = failures.barh(np.arange(len(causes)), sums, color=colours, height=0.65)
    numbers = [f"{total:,.0f} ({images})" for images, total in causes.values()]
    failures.bar_label(bars, numbers, fontsize=9, padding=3)
    failures.set_yticks(np.arange(len(causes)), list(causes))
    failures.invert_yaxis()
    failures.margins(x=0.18)
    failures.set_xlabel("people, sum of errors (images)")
    failures.set_title("Images with an error above the mean, by its main cause", fontsize=11)
    _bare(failures)
    return figure


# ------------------------------------------------------------------------------------------- panels of the calibration


def _error_edges(error: Floats) -> Floats:
    """Bins of the error, with 0 in the middle of one of its own: single units near it, wider ones far away."""
    reach = max(float(np.abs(error).max(initial=1.0)), 1.0)
    unit = 1.0 if np.all(error == np.round(error)) else reach / 60
    steps = [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 7.5, 9.5, 11.5, 14.5, 17.5]
    while steps[-1] * unit < reach:
        steps.append(steps[-1] + 5)
    right = np.array(steps) * unit
    edges = np.concatenate([-right[::-1], right])
    inside = (edges >= error.min(initial=0.0) - 5 * unit) & (edges <= error.max(initial=0.0) + 5 * unit)
    return edges[inside]


def _plot_pointing(ax: Axes, error: Floats, actions: Ints, pool_labels: Sequence[str], edges: Floats) -> None:
    """Which way the needle points, as stacked shares."""
    kinds = np.array([2 if label == "end" else 1 if label.startswith("-") else 0 for label in pool_labels])[actions]
    table = np.stack([np.histogram(error[kinds == kind], edges)[0] for kind in range(3)]).astype(float)
    number = table.sum(0)
    share = np.divide(table, number, out=np.zeros_like(table), where=number >= _FEW)
    foot = np.zeros(len(number))
    for kind, (colour, name) in enumerate([(UP, "adds a weight"), (DOWN, "removes one"), (END, "ends")]):
        ax.bar(edges[:-1], share[kind], np.diff(edges), foot, align="edge", color=rgb(colour), label=name)
        foot += share[kind]
    ax.set_ylim(0, 1)
    if (shown := np.flatnonzero(foot)).size:
        ax.set_xlim(edges[shown[0]], edges[shown[-1] + 1])
    ax.yaxis.set_major_formatter(_percent())
    ax.set_title("what the agent does", fontsize=11)
    ax.set_ylabel("share of actions")
    ax.legend(loc="lower right", fontsize=9, framealpha=0.9)


def _plot_falling(ax: Axes, error: Floats, q: Floats, returns: Floats, edges: Floats) -> None:
    """Q value and return by remaining error: means, and the band of eight in ten Q values."""
    bins = np.digitize(error, edges) - 1
    rows = []
    for place in range(len(edges) - 1):
        here = bins == place
        if here.sum() >= _FEW:
            low, high = np.quantile(q[here], (0.1, 0.9))
            rows.append(((edges[place] + edges[place + 1]) / 2, q[here].mean(), low, high, returns[here].mean()))
    centre, mean, low, high, earned = np.array(rows).reshape(-1, 5).T
    ax.fill_between(centre, low, high, color=rgb(UP), alpha=0.2, linewidth=0, label="eight in ten Q values")
    ax.plot(centre, mean, "o-", color=rgb(UP), markersize=4, label="Q value, mean")
    ax.plot(centre, earned, "s--", color=rgb(VALUE), markersize=4, label="what was earned, mean")
    ax.set_title("Q value of the action taken", fontsize=11)
    ax.set_ylabel("Q value, return")
    ax.legend(loc="best", fontsize=9, framealpha=0.9)
    _bare(ax)


def _plot_reliability(ax: Axes, q: Floats, returns: Floats) -> None:
    """The mean return of actions with about the same Q value; the identity is a needle that is always right."""
    order = np.argsort(q, kind="stable")
    groups = [group for group in np.array_split(order, 20) if len(group)]
    said, earned = (np.array([a[group].mean() for group in groups]) for a in (q, returns))
    ends = np.array([said.min(), said.max()])
    ax.plot(ends, ends, color=rgb(FADED), linewidth=1.2, label="a needle that is right")
    ax.plot(said, earned, "o-", color=rgb(CHOSEN), markersize=5, label="a twentieth of the actions")
    ax.set_title("is the Q value what is earned?", fontsize=11)
    ax.set_xlabel("Q value")
    ax.set_ylabel("discounted rewards that followed, mean")
    ax.grid(color="0.92")
    ax.set_axisbelow(True)
    ax.legend(loc="best", fontsize=9, framealpha=0.9)
    _bare(ax)


def _people(number: float) -> str:
    return f"{number:.2g}" if number < 9.95 else f"{number:.0f}"


def _percent() -> Any:
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(1.0, decimals=0)


def _swatch(colour: Colour, label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=rgb(colour), label=label)


def _bare(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
