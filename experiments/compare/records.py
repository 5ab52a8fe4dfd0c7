"""What a run directory tells of its run, for agents and one-step heads alike; and which runs differ by their seed only.

Only `config.json` and `progress.csv` are read, so that a run may still be going on, or be of an older version.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from experiments.runs.config import RunConfig
from experiments.runs.directory import RunDirectory
from experiments.tracking import EPOCH, SECONDS, TRANSITIONS
from libra_gym.errors import LibraError

FIGURES = ("mae", "rmse", "game_3", "steps_per_patch", "transitions", "seconds")
"""The numbers of a run that are averaged over seeds."""

_OLD_SECONDS = "time/time_elapsed"  # what runs recorded before they recorded SECONDS; it begins anew with each sitting
_NOT_SETTINGS = {"seed", "device", "bank", "also", "about", "checkpoint_minutes", "sb3_zip", "wandb"}
"""Keys of `config.json` in which runs of one group may differ; banks are told by their fingerprints, not by paths."""
_DEFAULTS = {field.name: field.default for field in fields(RunConfig) if field.default is not MISSING}
"""What runs of an older version had, which do not say so."""


class Point(NamedTuple):
    """A run at the end of an epoch."""

    epoch: int
    mae: float
    transitions: int | None
    seconds: float | None


@dataclass(frozen=True)
class RunRecord:
    """A run in numbers: the errors are those of its best epoch, transitions and seconds those of all its epochs."""

    path: str
    algo: str
    preset: str
    seed: int
    best_epoch: int
    epochs: int
    """How many are finished."""
    planned_epochs: int
    mae: float
    rmse: float
    game_3: float
    steps_per_patch: float | None
    """None for a one-step head."""
    transitions: int | None
    seconds: float | None
    curve: tuple[Point, ...]
    judged_on: str
    """The bank's fingerprint and the validation split."""
    settings: str
    """All that must be equal for two runs to differ by their seed only."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        hidden = {"settings", "judged_on", "curve"}
        plain = {key: value for key, value in vars(self).items() if key not in hidden}
        return {**plain, "curve": [point._asdict() for point in self.curve]}


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ by their seed only, in the order of their seeds."""

    runs: tuple[RunRecord, ...]

    @property
    def mae(self) -> float:
        """The mean of the runs' MAEs."""
        return statistics.fmean(run.mae for run in self.runs)

    def spread(self, figure: str) -> tuple[float, float] | None:
        """Mean and sample deviation of a figure; None where a run does not have it. One run deviates by 0."""
        values = [getattr(run, figure) for run in self.runs]
        if None in values:
            return None
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def read_run(path: str | Path) -> RunRecord:
    """Read the record of a run that has finished an epoch at least."""
    run = RunDirectory(path)
    config = _read_config(run)
    rows = [row for row in _read_rows(run) if math.isfinite(float(row["validation/mae"] or math.nan))]
    if not rows:
        raise LibraError(f"{str(path)!r} has no finished epoch yet; wait for it, or go on with `{run.resume_command}`.")
    best = min(rows, key=lambda row: float(row["validation/mae"]))
    curve = tuple(
        Point(int(row[EPOCH]), float(row["validation/mae"]), _transitions(row), _seconds(row)) for row in rows
    )
    kept = {key: value for key, value in (_DEFAULTS | config).items() if key not in _NOT_SETTINGS}
    return RunRecord(
        path=str(path),
        algo=config["algo"],
        preset=config["preset"],
        seed=config["seed"],
        best_epoch=int(best[EPOCH]),
        epochs=curve[-1].epoch,
        planned_epochs=config["epochs"],
        mae=float(best["validation/mae"]),
        rmse=float(best["validation/rmse"]),
        game_3=float(best["validation/game_3"]),
        steps_per_patch=_number(best, "validation/mean_steps"),
        transitions=curve[-1].transitions,
        seconds=curve[-1].seconds,
        curve=curve,
        judged_on=f"{config['fingerprint'].partition('+')[0]} {config['validation_split']}",
        settings=json.dumps(kept, sort_keys=True),
    )


def group_runs(runs: Iterable[RunRecord]) -> list[RunGroup]:
    """Runs that differ by their seed only, together; the least MAE first."""
    together: dict[str, list[RunRecord]] = {}
    for run in runs:
        together.setdefault(run.settings, []).append(run)
    groups = [RunGroup(tuple(sorted(members, key=lambda run: run.seed))) for members in together.values()]
    return sorted(groups, key=lambda group: group.mae)


def _read_config(run: RunDirectory) -> dict[str, Any]:
    needed = {"algo", "preset", "seed", "epochs", "fingerprint", "validation_split"}
    try:
        config = json.loads(run.config_path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LibraError(f"{str(run.path)!r} is no run: its config.json cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise LibraError(f"{str(run.config_path)!r} is damaged ({error}); leave this run out.") from None
    if not isinstance(config, dict) or not needed <= config.keys():
        raise LibraError(f"{str(run.path)!r} is no run: its config.json is not that of `libra train`.")
    return config


def _read_rows(run: RunDirectory) -> list[dict[str, str]]:
    if not run.progress_path.exists():
        return []
    with run.progress_path.open(newline="", encoding="utf-8") as file:
        table = csv.DictReader(file)
        if missing := {EPOCH, "validation/mae", "validation/rmse", "validation/game_3"} - set(table.fieldnames or ()):
            raise LibraError(f"{str(run.progress_path)!r} has no column {min(missing)!r}; leave this run out.")
        return list(table)


def _number(row: dict[str, str], key: str) -> float | None:
    """A figure of a row; None where it was not recorded."""
    text = row.get(key)
    return float(text) if text else None


def _transitions(row: dict[str, str]) -> int | None:
    number = _number(row, TRANSITIONS)
    return None if number is None else int(number)


def _seconds(row: dict[str, str]) -> float | None:
    seconds = _number(row, SECONDS)
    return _number(row, _OLD_SECONDS) if seconds is None else seconds
