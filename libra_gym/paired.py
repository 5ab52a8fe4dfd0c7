"""Two counters on the same photos: whether one's lower error can be more than chance.

The errors of photos differ far more than those of counters, so that the MAEs of two counters, each with its own
interval, tell little. The difference of their errors photo by photo tells more.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from libra_gym.errors import LibraError
from libra_gym.metrics import Score, redrawn_mean

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Paired:
    """How the absolute errors of a counter differ from another's on the same images."""

    images: int
    mae: float
    other_mae: float
    interval: tuple[float, float] | None
    """Where the difference of the MAEs may lie on other images of the same kind, 95 %; see `Score.mae_interval`."""
    closer: int
    """Images that the first one counts better."""
    farther: int
    """Images that it counts worse."""

    @property
    def difference(self) -> float:
        """Of the MAEs: below 0 where the first counter is the better one."""
        return self.mae - self.other_mae

    def table(self, title: str) -> Table:
        """The comparison as a table for the terminal."""
        from rich.table import Table

        table = Table("figure", title=title)
        table.add_column("value", justify="right")
        table.add_row("the other's MAE", f"{self.other_mae:.2f}")
        table.add_row("difference of the MAE", f"{self.difference:+.2f}")
        if self.interval is not None:
            table.add_row("95 % interval of the difference", f"{self.interval[0]:+.1f} to {self.interval[1]:+.1f}")
        table.add_row("better on", f"{self.closer} of {self.images} images")
        table.add_row("worse on", f"{self.farther} of {self.images} images")
        return table


def compare(score: Score, others: Mapping[str, float]) -> Paired:
    """Compare a counter with another one's counts by image name; images that the other did not count are an error."""
    missing = [record.name for record in score.records if record.name not in others]
    if missing:
        raise LibraError(
            f"The other counts lack {len(missing)} of {len(score.records)} images, the first is {missing[0]!r}; both "
            "must have counted the same ones."
        )
    people = np.array([record.people for record in score.records])
    ours = np.abs(score.errors)
    theirs = np.abs(np.array([others[record.name] for record in score.records]) - people)
    gap = ours - theirs
    return Paired(
        images=len(gap),
        mae=float(ours.mean()),
        other_mae=float(theirs.mean()),
        interval=redrawn_mean(gap),
        closer=int((gap < 0).sum()),
        farther=int((gap > 0).sum()),
    )


def read_counts(path: str | Path) -> dict[str, float]:
    """Counts by image name from a CSV file with the columns `name` and `count`, such as `Score.save_csv` writes."""
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            header, *lines = list(csv.reader(file)) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LibraError(f"The counts {str(path)!r} cannot be read ({error}).") from None
    if not {"name", "count"} <= set(header):
        raise LibraError(f"{str(path)!r} has no columns 'name' and 'count'; `libra evaluate --csv` writes them.")
    counts: dict[str, float] = {}
    for number, line in enumerate(lines, 2):
        row = dict(zip(header, line))
        try:
            count = float(row.get("count", ""))
        except ValueError:
            count = np.nan
        if not np.isfinite(count):
            raise LibraError(f"{str(path)!r}, line {number}: the count is no number.")
        if row["name"] in counts:
            raise LibraError(f"{str(path)!r}, line {number}: the image {row['name']!r} is there twice.")
        counts[row["name"]] = count
    return counts
