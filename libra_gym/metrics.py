"""How near the counted people come to the real ones, for anything that gives a count per patch (Sec. 3 of the paper).

`score` is the one place that computes the figures, so that the weighing agents and the one-step heads they are compared
with report through the same arithmetic.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from libra_gym.bank import BankImage, FeatureBank
from libra_gym.counts import patch_edges
from libra_gym.errors import LibraError

if TYPE_CHECKING:
    from rich.table import Table

Floats = npt.NDArray[np.float64]

DECIMALS = 2
"""Of the figures in a CSV file; what differs by less is the same to `libra_gym.paired`."""
GAME_LEVELS = 4
"""GAME 0 to 3."""
_PARTS = 2 ** (GAME_LEVELS - 1)  # a side is cut in this many at the finest level
_FEWEST_TO_REDRAW = 10
_MANY_TO_REDRAW = 1_000
"""Of fewer images, an interval of the MAE would say little and promise much."""


@dataclass(frozen=True)
class ImageRecord:
    """One image: how many people it shows, and how many were counted."""

    name: str
    split: str
    people: float
    count: float
    game: tuple[float, ...]
    """The image's own GAME 0 to 3; the first is its absolute error."""


@dataclass(frozen=True)
class CrowdGroup:
    """The error of the images whose crowds are of like size."""

    images: int
    fewest: float
    """People in the emptiest of these images."""
    most: float
    """People in the fullest."""
    mae: float
    bias: float
    share: float
    """Of the absolute errors of all images, added up."""


@dataclass(frozen=True)
class Score:
    """The error of counts over the images of a bank. An image's truth is its number of dots."""

    bank: str
    mae: float
    """Mean absolute error per image."""
    rmse: float
    """Root of the mean squared error per image, which the paper and its field call "MSE"."""
    nae: float | None
    """Mean absolute error as a share of the people there; images without people are left out (None: all were)."""
    bias: float
    """Mean signed error per image: above 0 where too many are counted."""
    game: tuple[float, ...]
    """Grid average mean absolute error, levels 0 to 3.

    Level L cuts an image in 4^L equal regions and adds up their absolute errors, so that people counted in the wrong
    place do not make up for people missed; level 0 is the MAE. The regions' edges do not fall on the patches', so a
    patch's count goes to the regions in proportion to the area that it shares with them (padding aside). A dot belongs
    to the region it lies in. Where a bank holds no dots, the true patch counts stand in for them: dealt out by area
    like the counted ones, and scaled to the image's number of people.
    """
    interval_accuracy: float | None
    """The share of patches in their true interval; None for a scale that weighs real-valued counts."""
    records: tuple[ImageRecord, ...]

    @property
    def errors(self) -> Floats:
        """Counted minus true people of each image."""
        return np.array([record.count - record.people for record in self.records])

    def mae_interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """Where the MAE on other photos of the same kind may lie, by drawing these ones again (bootstrap).

        It knows of the chance in which photos were drawn, and nothing of seeds or of what was chosen on these photos.
        None if there are fewer than ten, or if all errors are alike.
        """
        return redrawn_mean(np.abs(self.errors), confidence)

    def by_crowd(self, groups: int = 4) -> tuple[CrowdGroup, ...]:
        """The errors of equally many images each, from the emptiest to the fullest: a mean over all can hide them."""
        people, errors = np.array([record.people for record in self.records]), self.errors
        total = np.abs(errors).sum()
        parts = np.array_split(np.argsort(people, kind="stable"), min(groups, len(people)))
        return tuple(
            CrowdGroup(
                images=len(part),
                fewest=float(people[part].min()),
                most=float(people[part].max()),
                mae=float(np.abs(errors[part]).mean()),
                bias=float(errors[part].mean()),
                share=float(np.abs(errors[part]).sum() / total) if total else 0.0,
            )
            for part in parts
        )

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain JSON types: `images` is the number of images, `records` has one entry for each."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        records = plain.pop("records")
        interval = self.mae_interval()
        return {
            **plain,
            "mae_interval": None if interval is None else list(interval),
            "by_crowd": [asdict(group) for group in self.by_crowd()],
            "images": len(records),
            "records": records,
        }

    def save_json(self, path: str | Path) -> None:
        """Write `to_dict` to a file."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"
        _write(path, text, errors="backslashreplace")

    def save_csv(self, path: str | Path) -> None:
        """Write a line per image: its name and split, the people there, the count and the image's own GAME 1 to 3."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["name", "split", "people", "count", *(f"game_{level}" for level in range(1, GAME_LEVELS))])
        for record in self.records:
            figures = (record.count, *record.game[1:])
            writer.writerow(
                [record.name, record.split, f"{record.people:g}", *(f"{figure:.{DECIMALS}f}" for figure in figures)]
            )
        _write(path, text.getvalue())

    def table(self) -> Table:
        """The figures as a table for the terminal."""
        from rich.markup import escape
        from rich.table import Table

        table = Table("figure", title=f"{escape(self.bank)}: {len(self.records)} images")
        table.add_column("value", justify="right")
        for name, value in self._rows():
            table.add_row(name, value)
        return table

    def crowd_table(self, groups: int = 4) -> Table:
        """`by_crowd` as a table for the terminal."""
        from rich.table import Table

        table = Table("people", title="from the emptiest to the fullest")
        for column in ("images", "MAE", "bias", "share of all errors"):
            table.add_column(column, justify="right")
        for group in self.by_crowd(groups):
            table.add_row(
                f"{group.fewest:,.0f} to {group.most:,.0f}",
                str(group.images),
                f"{group.mae:.2f}",
                f"{group.bias:+.2f}",
                f"{group.share:.0%}",
            )
        return table

    def _rows(self) -> list[tuple[str, str]]:
        interval = self.mae_interval()
        return [
            ("MAE", f"{self.mae:.2f}"),
            *([] if interval is None else [("95 % interval of the MAE", f"{interval[0]:.1f} to {interval[1]:.1f}")]),
            ("RMSE (“MSE”)", f"{self.rmse:.2f}"),
            ("NAE", "–" if self.nae is None else f"{self.nae:.3f}"),
            ("bias", f"{self.bias:+.2f}"),
            *((f"GAME {level}", f"{self.game[level]:.2f}") for level in range(1, GAME_LEVELS)),
            ("patches in their interval", "–" if self.interval_accuracy is None else f"{self.interval_accuracy:.1%}"),
        ]


def redrawn_mean(values: Floats, confidence: float = 0.95) -> tuple[float, float] | None:
    """An interval of the mean of what the values were drawn from (bootstrap); None of too few, or of equal ones."""
    from scipy.stats import bootstrap

    if len(values) < _FEWEST_TO_REDRAW or np.ptp(values) <= 1e-9 * np.abs(values).max():
        return None
    # With many values the correction for bias changes nothing, and would take memory by their square.
    many = len(values) > _MANY_TO_REDRAW
    drawn = bootstrap(
        (values,),
        np.mean,
        confidence_level=confidence,
        rng=np.random.default_rng(0),
        method="percentile" if many else "BCa",
        batch=500 if many else None,
    )
    return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)


def score(
    patch_counts: npt.ArrayLike | torch.Tensor, bank: FeatureBank, *, intervals: npt.ArrayLike | None = None
) -> Score:
    """Judge one count per patch of a bank.

    Args:
        patch_counts: people per patch, in the bank's order.
        bank: what was counted.
        intervals: the patches' intervals as the counter named them (None: those that the counts fall in).
    """
    if isinstance(patch_counts, torch.Tensor):
        patch_counts = patch_counts.detach().cpu().numpy()
    counts = np.asarray(patch_counts, dtype=np.float64)
    if counts.shape != (len(bank),):
        raise LibraError(f"There are counts of shape {counts.shape}, but bank {bank.name!r} has {len(bank)} patches.")
    if not np.isfinite(counts).all():
        first = int(np.flatnonzero(~np.isfinite(counts))[0])
        raise LibraError(f"The count of patch {first} is {counts[first]}, but counts must be finite numbers.")

    people = bank.people.double().numpy()
    totals = bank.image_totals(torch.from_numpy(counts)).numpy()
    error = totals - people
    game = _game(_regional_errors(counts, bank))
    crowded = people > 0
    named = bank.quantizer.quantize(counts) if intervals is None else np.asarray(intervals)
    return Score(
        bank=bank.name,
        mae=float(np.abs(error).mean()),
        rmse=float(np.sqrt(np.square(error).mean())),
        nae=float((np.abs(error) / np.where(crowded, people, 1.0))[crowded].mean()) if crowded.any() else None,
        bias=float(error.mean()),
        game=tuple(game.mean(0).tolist()),
        interval_accuracy=float((named == bank.intervals.cpu().numpy()).mean()),
        records=tuple(
            ImageRecord(image.name, image.split, float(image.people), float(total), tuple(levels))
            for image, total, levels in zip(bank.images, totals, game.tolist())
        ),
    )


# -------------------------------------------------------------------------------------------------------------- GAME


def _game(errors: Floats) -> Floats:
    """GAME 0 to 3 of each image, `(images, 4)`: the regions of a level are four regions each of the next."""
    levels = []
    for level in range(GAME_LEVELS):
        side, share = 2**level, _PARTS // 2**level
        pooled = errors.reshape(-1, side, share, side, share).sum((2, 4))
        levels.append(np.abs(pooled).sum((1, 2)))
    return np.stack(levels, axis=1)


def _regional_errors(counts: Floats, bank: FeatureBank) -> Floats:
    """Counted minus true people in each region of the finest level, `(images, 8, 8)`."""
    true_counts = bank.counts.cpu().numpy().astype(np.float64)
    errors = np.empty((len(bank.images), _PARTS, _PARTS))
    for i, image in enumerate(bank.images):
        patches = bank.patches_of(i)
        counted = _deal_out(counts[patches], image)
        there = (
            _deal_out(true_counts[patches], image) if bank.points is None else _count_dots(bank.points[i], image.size)
        )
        if there.sum() == 0:
            there = np.ones_like(there)  # nobody knows where the people are: any place is as likely
        errors[i] = counted - there * (image.people / there.sum())
    return errors


def _deal_out(counts: Floats, image: BankImage) -> Floats:
    """Patch counts, shared out to the finest regions by area."""
    height, width = image.size
    return _overlap(height).T @ counts.reshape(image.rows, image.cols) @ _overlap(width)


def _overlap(length: int) -> Floats:
    """The share of each patch along a side that lies in each of the side's equal parts, `(patches, 8)`."""
    patches, parts = patch_edges(length), np.linspace(0.0, length, _PARTS + 1)
    shared = np.minimum(patches[1:, None], parts[1:]) - np.maximum(patches[:-1, None], parts[:-1])
    return np.maximum(shared, 0.0) / np.diff(patches)[:, None]


def _count_dots(points: npt.NDArray[np.float32], size: tuple[int, int]) -> Floats:
    """How many dots lie in each of the finest regions; a dot beyond the border is in the region nearest to it."""
    height, width = size
    column, row = np.clip(np.asarray(points, np.float64) * _PARTS / (width, height), 0, _PARTS - 1).astype(np.int64).T
    return np.bincount(row * _PARTS + column, minlength=_PARTS**2).reshape(_PARTS, _PARTS).astype(np.float64)


def _write(path: str | Path, text: str, errors: str = "surrogateescape") -> None:
    """Names of files need not be text: a table gets their bytes, and JSON what it writes instead."""
    try:
        Path(path).write_text(text, encoding="utf-8", errors=errors)
    except OSError as error:
        raise LibraError(
            f"{str(path)!r} cannot be written ({error.strerror}); name a file in a folder that exists."
        ) from None
