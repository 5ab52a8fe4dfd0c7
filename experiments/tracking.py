"""Where a run's figures go: a CSV file, TensorBoard, and Weights & Biases if asked.

All are outputs of SB3's logger, so that whatever an algorithm or a callback records lands in each. W&B is imported when
it is asked for and not before.
"""

from __future__ import annotations

import csv
import io
import math
import os
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import Figure, KVWriter, Logger, TensorBoardOutputFormat, filter_excluded_keys

from libra_gym.errors import LibraError
from libra_gym.features.storage import write_whole

EPOCH = "rollout/epoch"
"""The key under which the epoch is logged, and the first column of the CSV file."""
SECONDS = "time/seconds"
"""What a run has taken when an epoch ends, over all its sittings."""
TRANSITIONS = "time/total_timesteps"
"""SB3's name for the actions taken so far; a one-step head counts the patches that it was shown."""
PROJECT = "libra-gym"


class CsvWriter(KVWriter):
    """A table with a row per epoch.

    The file is written whole each time: a kill never leaves half a row, and columns may come later. When a run goes on,
    rows after its checkpoint are dropped, because those epochs are gone through again.
    """

    def __init__(self, path: Path, last_epoch: int = 0) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                self.rows = [row for row in csv.DictReader(file) if row[EPOCH] and int(row[EPOCH]) <= last_epoch]

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Add a row for an epoch; what an algorithm logs in between goes to the other outputs alone."""
        if EPOCH not in key_values:
            return
        self.rows.append(filter_excluded_keys(key_values, key_excluded, "csv"))
        columns = {EPOCH: None} | {key: None for row in self.rows for key in sorted(row)}
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, list(columns), lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        write_whole(self.path, text.getvalue().encode())

    def close(self) -> None:
        """Nothing is left open between two rows."""


class WandbWriter(KVWriter):
    """Logs to a W&B run, or goes on with it; `WANDB_MODE=offline` needs no account.

    The step of W&B is the number of transitions, which goes on growing when a run goes on.
    """

    def __init__(self, run_id: str, directory: Path, config: dict[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise LibraError(
                "--wandb needs the package wandb; install it with: pip install 'libra-gym[wandb]'."
            ) from None
        self._wandb = wandb
        try:
            self.run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                id=run_id,
                name=directory.name,
                dir=str(directory),
                config=config,
                resume="allow",
                allow_val_change=True,  # a run that goes on may have more epochs
            )
        except (wandb.errors.Error, OSError) as error:
            raise LibraError(f"W&B cannot be reached ({error}); log in, or set WANDB_MODE=offline.") from None

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Log figures and pictures."""
        kept = filter_excluded_keys(key_values, key_excluded, "wandb")
        shown = {
            key: self._wandb.Image(value.figure) if isinstance(value, Figure) else value for key, value in kept.items()
        }
        self.run.log(shown, step=step)

    def keep_model(self, paths: list[Path], figures: dict[str, Any]) -> None:
        """Log model files as one artifact."""
        artifact = self._wandb.Artifact(f"model-{self.run.id}", type="model", metadata=figures)
        for path in paths:
            artifact.add_file(str(path))
        self.run.log_artifact(artifact)

    def close(self) -> None:
        """End W&B's run."""
        self.run.finish()


def make_logger(progress: Path, tensorboard: Path, wandb: WandbWriter | None, last_epoch: int = 0) -> Logger:
    """A logger of SB3 with all outputs of a run; `last_epoch` is the one that it goes on from."""
    outputs: list[KVWriter] = [CsvWriter(progress, last_epoch), TensorBoardOutputFormat(str(tensorboard))]
    return Logger(str(progress.parent), outputs if wandb is None else [*outputs, wandb])


def readable(value: float | None, digits: int = 2) -> str:
    """A figure for people; a dash where there is none yet. One too small for its digits is shown by two that count."""
    if value is None or not math.isfinite(value):
        return "–"
    small = 0 < abs(value) < 10 ** (1 - digits)
    return f"{value:.2g}" if small else f"{value:,.{digits}f}"
