"""Runs side by side as a table, as curves and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from experiments.compare.records import FIGURES, Point, RunGroup, RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WORDS = ("run", "algo", "preset")
_NUMBERS = ("seed", "best epoch", "MAE", "RMSE", "GAME 3", "steps", "transitions", "time")
_WORD = 9
"""The least width of a column of words, which are broken where they are longer."""
_LEAST = ("transitions", "time", "steps", "seed", "best epoch", "preset", "GAME 3", "algo")
"""Columns in the order in which they are left out of a narrow table."""
SHOWN = 2.0
"""The curves' upper edge, in multiples of the largest best MAE: a bad beginning would flatten all that follows."""
MOST_HIDDEN = 0.25
"""Where more epochs than this share would lie above that edge, the scale is logarithmic and shows all."""


def fitting_table(groups: Sequence[RunGroup], console: Console) -> tuple[Table, tuple[str, ...]]:
    """The table with all its figures in full, and the columns that had to be left out for want of room."""
    for number in range(len(_LEAST) + 1):
        table = comparison_table(groups, without=_LEAST[:number])
        if Measurement.get(console, console.options.update(max_width=1000), table).minimum <= console.width:
            break
    return table, _LEAST[:number]


def comparison_table(groups: Sequence[RunGroup], without: Sequence[str] = ()) -> Table:
    """A row per run, and after runs that differ by their seed only, one of their means and deviations."""
    table = Table(title="validation figures of the best epochs")
    for heading in _WORDS:
        table.add_column(heading, overflow="fold", min_width=_WORD)
    for heading in _NUMBERS:
        table.add_column(heading, justify="right", no_wrap=True)
    headings = [*_WORDS, *_NUMBERS]
    for heading in without:
        del table.columns[headings.index(heading)]
        headings.remove(heading)

    def add_row(*cells: str, style: str | None = None) -> None:
        named = dict(zip([*_WORDS, *_NUMBERS], cells, strict=True))
        table.add_row(*(named[heading] for heading in headings), style=style)

    for group in groups:
        for run in group.runs:
            figures = (_cell(figure, getattr(run, figure)) for figure in FIGURES)
            epoch = f"{run.best_epoch} of {run.epochs}"
            add_row(escape(_name(run)), run.algo, run.preset, str(run.seed), epoch, *figures)
        if len(group.runs) > 1:
            first, spreads = group.runs[0], (_spread_cell(figure, group) for figure in FIGURES)
            number = len(group.runs)
            seeds = f"{number} seeds" if len({run.seed for run in group.runs}) == number else f"{number} runs"
            add_row("mean ± deviation", first.algo, first.preset, seeds, "", *spreads, style="bold")
        table.add_section()
    for column in table.columns:
        if column.no_wrap:  # as wide as its figures are
            column.min_width = max(len(str(text)) for text in (column.header, *column.cells))
    return table


def notes(groups: Sequence[RunGroup]) -> list[str]:
    """What a reader of the table must know besides."""
    runs = [run for group in groups for run in group.runs]
    said = [
        f"{run.path} has finished {run.epochs} of {run.planned_epochs} epochs."
        for run in runs
        if run.epochs < run.planned_epochs
    ]
    if len({run.judged_on for run in runs}) > 1:
        said.append("The runs were judged on different banks or splits: their errors cannot be compared.")
    return said


def comparison_figure(groups: Sequence[RunGroup]) -> Figure:
    """Validation MAE against time and against transitions; runs that differ by their seed only share a colour."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    sides: list[tuple[Any, str, Callable[[Point], float | None]]] = [
        (left, "minutes", lambda point: None if point.seconds is None else point.seconds / 60),
        (right, "transitions", lambda point: point.transitions),
    ]
    for axes, label, along in sides:
        for colour, group in enumerate(groups):
            for number, run in enumerate(group.runs):
                points = [(x, point.mae) for point in run.curve if (x := along(point)) is not None]
                name = _label(group, groups) if number == 0 else None
                xs, ys = [x for x, _ in points], [y for _, y in points]
                axes.plot(xs, ys, marker="o", markersize=3, color=f"C{colour % 10}", label=name)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(EngFormatter(sep="") if axes is right else "{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    left.set_ylabel("validation MAE")
    edge = SHOWN * max(run.mae for group in groups for run in group.runs)
    points = [point.mae for group in groups for run in group.runs for point in run.curve]
    above = sum(mae > edge for mae in points)
    if above > MOST_HIDDEN * len(points):
        left.set_yscale("log")
        left.yaxis.set_major_formatter("{x:,g}")
    else:
        left.set_ylim(bottom=0, top=edge)
        if above:
            figure.suptitle(f"{above} {'epoch' if above == 1 else 'epochs'} above {edge:,.0f} not shown", fontsize=9)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def to_json(groups: Sequence[RunGroup], errors: Sequence[str]) -> dict[str, Any]:
    """All figures as plain JSON types."""
    return {
        "runs": [run.to_dict() for group in groups for run in group.runs],
        "groups": [
            {
                "algo": group.runs[0].algo,
                "preset": group.runs[0].preset,
                "seeds": [run.seed for run in group.runs],
                "runs": [run.path for run in group.runs],
                "mean": {figure: spread and spread[0] for figure in FIGURES for spread in [group.spread(figure)]},
                "deviation": {figure: spread and spread[1] for figure in FIGURES for spread in [group.spread(figure)]},
            }
            for group in groups
            if len(group.runs) > 1
        ],
        "errors": list(errors),
    }


def _name(run: RunRecord) -> str:
    return Path(run.path).resolve().name


def _label(group: RunGroup, groups: Sequence[RunGroup]) -> str:
    """Algorithm and preset; the directory too where other groups have the same."""
    first = group.runs[0]
    alike = [other for other in groups if (other.runs[0].algo, other.runs[0].preset) == (first.algo, first.preset)]
    return f"{first.algo}, {first.preset}" + (f" ({_name(first)})" if len(alike) > 1 else "")


def _cell(figure: str, value: float | None) -> str:
    if value is None:
        return "–"
    if figure == "seconds":
        return str(timedelta(seconds=round(value)))
    return f"{value:,.0f}" if figure == "transitions" else f"{value:.2f}"


def _spread_cell(figure: str, group: RunGroup) -> str:
    spread = group.spread(figure)
    return "–" if spread is None else " ± ".join(_cell(figure, value) for value in spread)
