"""A run as it is seen in the terminal: one live line, and one line that stays for each epoch."""

from __future__ import annotations

import math
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from experiments.tracking import readable

REFRESH = 0.5
"""Seconds between two readings of the figures; a reading may wait for the device."""
LOG_EVERY = 60.0
"""Seconds between two lines within an epoch where there is no terminal for a live one, as in a job's log."""


class Display:
    """Shows epoch, ε, loss, steps per second, time left and validation MAE."""

    def __init__(self, console: Console, epochs: int, unit: str = "steps") -> None:
        self.console = console
        self.unit = unit
        self.epochs = epochs
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._bar = self._progress.add_task("", total=float(epochs))
        self._mae = math.nan
        self._next = 0.0
        self._since = (time.monotonic(), 0)
        self._logged = time.monotonic()

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @property
    def due(self) -> bool:
        """Whether it is time to read the figures again."""
        return time.monotonic() >= self._next

    def begin(self, done: float, steps: int) -> None:
        """Start counting from here, so that a run that goes on tells its own speed."""
        self._progress.reset(self._bar, total=float(self.epochs))
        self._progress.update(self._bar, completed=done)
        self._since = (time.monotonic(), steps)

    def update(self, done: float, steps: int, epsilon: float | None, loss: float | None) -> None:
        """Show where the run is; `done` counts epochs."""
        self._next = time.monotonic() + REFRESH
        epoch = min(int(done) + 1, self.epochs)
        text = self._line(epoch, steps, epsilon, loss)
        self._progress.update(self._bar, completed=done, description=f"{text}  MAE {readable(self._mae)}")
        if not self.console.is_terminal and time.monotonic() - self._logged >= LOG_EVERY:
            self._logged = time.monotonic()
            self.console.print(f"{text}  {done / self.epochs:.0%} done", highlight=False, soft_wrap=True)

    def epoch(
        self, epoch: int, steps: int, epsilon: float | None, loss: float | None, mae: float, improved: bool
    ) -> None:
        """Print the line of a finished epoch."""
        self._mae = mae
        self._logged = time.monotonic()
        best = "  best so far" if improved else ""
        text = self._line(epoch, steps, epsilon, loss)
        self.console.print(f"{text}  validation MAE {readable(mae)}{best}", highlight=False, soft_wrap=True)

    def _line(self, epoch: int, steps: int, epsilon: float | None, loss: float | None) -> str:
        then, before = self._since
        speed = (steps - before) / max(time.monotonic() - then, 1e-9)
        digits = ",.0f" if speed >= 10 else ".2f"
        exploring = "" if epsilon is None else f"  ε {epsilon:.2f}"
        return f"epoch {epoch}/{self.epochs}{exploring}  loss {readable(loss, 3)}  {speed:{digits}} {self.unit}/s"
