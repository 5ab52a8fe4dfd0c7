"""Runs side by side: what `libra compare` reads, prints, draws and writes (docs/training.md)."""

from experiments.compare.records import RunGroup, RunRecord, group_runs, read_run
from experiments.compare.report import comparison_figure, fitting_table, notes, to_json

__all__ = [
    "RunGroup",
    "RunRecord",
    "comparison_figure",
    "fitting_table",
    "group_runs",
    "notes",
    "read_run",
    "to_json",
]
