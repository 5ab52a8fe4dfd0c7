"""Two counters on the same photos: whether one's lower error can be more than chance.

The errors of photos differ far more than those of counters, so that the MAEs of two counters, each with its own
interval, tell little. The difference of their errors photo by photo tells more, and that of local errors (GAME) more
again, in which people counted in the wrong place do not make up for people missed.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from libra_gym.errors import LibraError
from libra_gym.metrics import DECIMALS, GAME_LEVELS, Floats, Score, redrawn_mean

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Counted:
    """What another counter made of an image."""

    count: float
    game: tuple[float, ...] = ()
    """The image's own GAME 1, 2, …, as far as they are known."""


@dataclass(frozen=True)
class Gap:
    """An error of two counters on the same images."""

    mean: float
    other: float
    interval: tuple[float, float] | None
    """Where the difference may lie on other images of the same kind, 95 %; see `Score.mae_interval`."""
    closer: int
    """Images on which the first counter's error is the smaller one."""
    farther: int
    """Images on which it is the larger one."""

    @classmethod
    def of(cls, ours: Floats, theirs: Floats) -> Gap:
        """Of the errors of both, image by image."""
        gap = ours - theirs
        same = 0.51 * 10.0**-DECIMALS  # theirs may come out of a file, rounded
        return cls(
            mean=float(ours.mean()),
            other=float(theirs.mean()),
            interval=redrawn_mean(gap),
            closer=int((gap < -same).sum()),
            farther=int((gap > same).sum()),
        )

    @property
    def difference(self) -> float:
        """Below 0 where the first counter is the better one."""
        return self.mean - self.other


@dataclass(frozen=True)
class Paired:
    """How the errors of a counter differ from another's on the same images."""

    images: int
    mae: Gap
    game: Gap | None
    """Of the finest level of GAME that is known of both; None if none is."""
    level: int
    """That level; 0 where only the counts of whole images are known."""

    def table(self, title: str) -> Table:
        """The comparison as a table for the terminal."""
        from rich.markup import escape
        from rich.table import Table

        columns = [("MAE", self.mae)] + ([] if self.game is None else [(f"GAME {self.level}", self.game)])
        table = Table("", title=escape(title))
        for name, _ in columns:
            table.add_column(name, justify="right")
        gaps = [gap for _, gap in columns]
        table.add_row("this one", *(f"{gap.mean:.2f}" for gap in gaps))
        table.add_row("the other", *(f"{gap.other:.2f}" for gap in gaps))
        table.add_row("difference", *(f"{gap.difference:+.2f}" for gap in gaps))
        if any(gap.interval for gap in gaps):
            table.add_row("its 95 % interval", *(_span(gap.interval) for gap in gaps))
        table.add_row("better on", *(f"{gap.closer} of {self.images} images" for gap in gaps))
        table.add_row("worse on", *(f"{gap.farther} of {self.images} images" for gap in gaps))
        return table


def _span(interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else f"{interval[0]:+.1f} to {interval[1]:+.1f}"


def compare(score: Score, others: Mapping[str, Counted]) -> Paired:
    """Compare a counter with another one's counts by image name; images that the other did not count are an error."""
    missing = [record.name for record in score.records if record.name not in others]
    if missing:
        raise LibraError(
            f"The other counts lack {len(missing)} of {len(score.records)} images, the first is {missing[0]!r}; both "
            "must have counted the same ones."
        )
    theirs = [others[record.name] for record in score.records]
    errors = [abs(other.count - record.people) for other, record in zip(theirs, score.records)]
    level = min([GAME_LEVELS - 1, *(len(other.game) for other in theirs)])
    game = None
    if level:
        game = Gap.of(
            np.array([record.game[level] for record in score.records]),
            np.array([other.game[level - 1] for other in theirs]),
        )
    return Paired(len(errors), Gap.of(np.abs(score.errors), np.array(errors)), game, level)


def read_counts(path: str | Path) -> dict[str, Counted]:
    """Counts by image name from a CSV file with the columns `name` and `count`, such as `Score.save_csv` writes.

    Columns `game_1`, `game_2` and so on, if there are any, are read too.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            header, *lines = list(csv.reader(file)) or [[]]
    except (OSError, csv.Error) as error:
        raise LibraError(f"The counts {str(path)!r} cannot be read ({error}).") from None
    if not {"name", "count"} <= set(header):
        raise LibraError(f"{str(path)!r} has no columns 'name' and 'count'; `libra evaluate --csv` writes them.")
    levels = [f"game_{level}" for level in range(1, GAME_LEVELS)]
    levels = levels[: next((i for i, name in enumerate(levels) if name not in header), len(levels))]
    counts: dict[str, Counted] = {}
    for number, line in enumerate(lines, 2):
        if not any(map(str.strip, line)):
            continue
        row = dict(zip(header, line))
        place = f"{str(path)!r}, line {number}"
        count, *game = (_number(row.get(name, ""), f"{place}: the {name}") for name in ("count", *levels))
        if not row.get("name"):
            raise LibraError(f"{place}: there is no name of an image.")
        if row["name"] in counts:
            raise LibraError(f"{place}: the image {row['name']!r} is there twice.")
        counts[row["name"]] = Counted(count, tuple(game))
    return counts


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise LibraError(f"{what} is no number.")
    return value
