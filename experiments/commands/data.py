"""``libra data``: look through a data set, and measure what its patch counts lose before anything is learnt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from libra_gym.counts import DEFAULT_KERNEL, KERNELS, Kernel, Points, Size, inside, patch_counts
from libra_gym.datasets import DATASETS, open_dataset
from libra_gym.datasets.inspection import SplitReport, inspect
from libra_gym.errors import LibraError
from libra_gym.quantizer import Quantizer

app = typer.Typer(add_completion=False, help="Look through data sets.", no_args_is_help=True)

DatasetOption = Annotated[str, typer.Option(help=f"One of {', '.join(DATASETS)}.")]
RootOption = Annotated[Path | None, typer.Option(help="The directory of the data set.")]


@app.command()
def check(dataset: DatasetOption, root: RootOption = None) -> None:
    """Read every photo and label file; print what there is and what is odd, and fail if a file is missing or broken."""
    data = open_dataset(dataset, root)
    console = Console()
    table = Table("split", title=dataset)
    for column in ("photos", "people", "per photo", "height", "width"):
        table.add_column(column, justify="right")
    reports = list(inspect(data))
    for report in reports:
        table.add_row(*_row(report))
    for split in sorted(set(data.splits) - set(data.present()), key=data.splits.index):
        table.add_row(split, "not on disk")
    console.print(table)
    for report in reports:
        oddities = [f"{number:,} {quirk}" for quirk, number in report.quirks.items()] + report.notes
        for oddity in oddities:
            console.print(f"{report.split}: {oddity}", highlight=False)
    broken = data.missing() + [sentence for report in reports for sentence in report.broken]
    if broken:
        raise LibraError(f"The data set {dataset!r} is not whole ({len(broken)} faults):\n" + "\n".join(broken))


@app.command()
def kernels(
    dataset: DatasetOption,
    root: RootOption = None,
    split: Annotated[str | None, typer.Option(help="By default all that is for training.")] = None,
) -> None:
    """Print each kernel's oracle error: the MAE of photos' counts if the interval of every patch were known."""
    data = open_dataset(dataset, root)
    split = split or "+".join(part for part in data.present() if part in ("train", "validation")) or "all"
    photos: list[tuple[Points, Size]] = []
    for photo in data.photos(split):
        height, width, _ = photo.image().shape
        photos.append((photo.points(), (height, width)))
    table = Table("kernel", title=f"Oracle MAE, {dataset} {split}, {len(photos)} photos")
    for column in ("bin middle", "bin mean", "intervals", "zero patches"):
        table.add_column(column, justify="right")
    for name, kernel in KERNELS.items():
        middle, mean, intervals, zeros = oracle(photos, kernel)
        shown = f"{name} (default)" if name == DEFAULT_KERNEL else name
        table.add_row(shown, f"{middle:.2f}", f"{mean:.2f}", str(intervals), f"{zeros:.1%}")
    Console().print(table)


def oracle(photos: list[tuple[Points, Size]], kernel: Kernel) -> tuple[float, float, int, float]:
    """Oracle MAE with bin middles and with bin means, number of intervals, and share of patches in interval 0.

    A photo's truth is the number of its dots inside of it; bins and means come from the very same photos.
    """
    maps = [patch_counts(points, size, kernel).ravel() for points, size in photos]
    truth = np.array([inside(points, size).sum() for points, size in photos])
    counts = np.concatenate(maps)
    starts = np.cumsum([0, *map(len, maps[:-1])])
    middle = Quantizer.fit_log(counts)
    intervals = middle.quantize(counts)
    errors = [
        float(np.abs(np.add.reduceat(quantizer.dequantize(intervals), starts) - truth).mean())
        for quantizer in (middle, middle.with_means(counts))
    ]
    return errors[0], errors[1], middle.num_intervals, float((intervals == 0).mean())


def _row(report: SplitReport) -> list[str]:
    if not report.people:
        return [report.split, "none readable"]
    heights, widths = zip(*report.sizes)
    people = report.people
    return [
        report.split,
        f"{len(people):,}",
        f"{sum(people):,}",
        *map(_range, (people, heights, widths)),
    ]


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
