"""``libra data``: look through a data set, and measure what its patch counts lose before anything is learnt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.commands.sources import parse_source
from libra_gym.counts import DEFAULT_KERNEL, KERNELS, Kernel, Points, Size, inside, patch_counts
from libra_gym.datasets import DATASETS, Photo, open_dataset
from libra_gym.datasets.inspection import SplitReport, inspect
from libra_gym.datasets.twins import LIKENESS, find_twins
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
        oddities = [f"{quirk}: {number:,}" for quirk, number in report.quirks.items()] + report.notes
        for oddity in oddities:
            console.print(f"{report.split}, {oddity}", highlight=False, markup=False)
    for sentence in data.unread():
        console.print(f"note: {sentence}", highlight=False, markup=False)
    broken = data.missing() + [sentence for report in reports for sentence in report.broken]
    if broken:
        faults = "1 fault" if len(broken) == 1 else f"{len(broken)} faults"
        raise LibraError(f"The data set {dataset!r} is not whole ({faults}):\n" + "\n".join(broken))


@app.command()
def twins(
    dataset: DatasetOption,
    root: RootOption = None,
    split: Annotated[str | None, typer.Option(help="By default all that is on disk.")] = None,
    other: Annotated[
        str | None, typer.Option(help="Another data set: NAME=DIR or NAME:SPLIT=DIR. By default the photos themselves.")
    ] = None,
    least: Annotated[float, typer.Option(min=-1.0, max=1.0, help="How much alike twins are at least.")] = LIKENESS,
) -> None:
    """Print photos that are in a data set twice, or in two data sets, scaled, mirrored or without their colours."""
    photos = _split_photos(dataset, root, split)
    if other is None:
        title, others = f"{dataset}, {len(photos):,} photos", None
    else:
        name, part, directory = parse_source(other, "--other")
        others = _split_photos(name, directory, part)
        title = f"{dataset}, {len(photos):,} photos, and {name}, {len(others):,}"
    table = Table("photo", "people", "twin", "people", "likeness", title=title)
    for column in table.columns[1::2]:
        column.justify = "right"
    found = find_twins(photos, others, least)
    for pair in found:
        first, second = pair.first, pair.second
        table.add_row(
            escape(first.name),
            f"{len(first.points()):,}",
            escape(second.name),
            f"{len(second.points()):,}",
            f"{pair.likeness:.3f}",
        )
    console = Console()
    if found:
        console.print(table)
    pairs = "1 pair" if len(found) == 1 else f"{len(found)} pairs"
    console.print(f"{title}: {pairs} of twins", highlight=False)


def _split_photos(dataset: str, root: Path | None, split: str | None) -> list[Photo]:
    data = open_dataset(dataset, root)
    return data.photos(split or "+".join(data.present()))


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
