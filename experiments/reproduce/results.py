"""What was measured, beside what the paper prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from experiments.reproduce.jobs import Job
from experiments.reproduce.paper import Figure, PaperTable
from experiments.reproduce.schedule import Executed
from experiments.reproduce.tables import Entry
from libra_gym.errors import LibraError


@dataclass(frozen=True)
class Cell:
    """One metric of a line."""

    metric: str
    paper: Figure | None
    ours: Figure | None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, where there are both."""
        return None if self.paper is None or self.ours is None else self.ours.mean - self.paper.mean

    @property
    def shown(self) -> tuple[str, str, str]:
        """The paper's figure, ours and the difference; empty where there is none."""
        difference = "" if self.difference is None else f"{self.difference:+.1f}"
        return "" if self.paper is None else str(self.paper), "" if self.ours is None else str(self.ours), difference


@dataclass(frozen=True)
class Line:
    """A line of a finished table."""

    row: str
    where: str
    judged: str
    seeds: int
    cells: tuple[Cell, ...]
    reason: str = ""
    """Why there are no figures of ours."""


def lines(table: PaperTable, entries: Sequence[Entry], executed: Executed) -> list[Line]:
    """All lines; one whose jobs did not all come to a result has no figure of ours, but the reason."""
    return [_line(table, entry, executed) for entry in entries]


def _line(table: PaperTable, entry: Entry, executed: Executed) -> Line:
    reason = entry.reason or next(filter(None, (_fault(job, executed) for job in entry.jobs)), "")
    ours: list[Figure | None] = [None] * len(table.metrics)
    if not reason:
        scores = [[json.loads(job.output.read_text(encoding="utf-8")) for job in seed] for seed in entry.runs]
        ours = [
            _figure([fmean(_read(score, metric) for score in folds) for folds in scores]) for metric in table.metrics
        ]
    paper = table.figures(entry.row, entry.where) or (None,) * len(table.metrics)
    cells = tuple(Cell(*triple) for triple in zip(table.metrics, paper, ours))
    return Line(entry.row, entry.where, "" if reason else entry.judged, len(entry.runs), cells, reason)


def _fault(job: Job, executed: Executed) -> str:
    """Why a job has no result; empty if it has one."""
    if job.state == "done":
        return ""
    outcome = executed.outcomes.get(job.key)
    return "not run yet" if outcome is None else outcome.reason


def _figure(values: Sequence[float]) -> Figure:
    """Mean and sample deviation over seeds."""
    return Figure(fmean(values), stdev(values) if len(values) > 1 else None)


def _read(score: dict[str, object], metric: str) -> float:
    """A metric of the paper in the figures that a job wrote."""
    if metric.startswith("GAME"):
        game = score["game"]
        assert isinstance(game, list)
        return float(game[int(metric.removeprefix("GAME"))])
    value = score[{"MAE": "mae", "MSE": "rmse"}.get(metric, metric)]
    if not isinstance(value, int | float):
        raise LibraError(f"The figure {metric!r} is {value!r}, but it must be a number.")
    return float(value)
