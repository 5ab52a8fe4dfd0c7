"""`libra gallery`: photos beside their count maps, and where the errors come from (docs/figures.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.commands.show import save_figure, write_and_tell
from libra_gym.datasets import DATASETS

if TYPE_CHECKING:
    from experiments.runs.counted import CountedBank
    from experiments.runs.failures import Failure
    from experiments.runs.scenes import PhotoOf
    from libra_gym.rendering import CountMaps

MOST_CAUSES = 5
"""Rows of the picture of failures."""


def gallery(
    model: Annotated[Path, typer.Argument(help="The directory of a run (its best model), or a model file.")],
    bank: Annotated[str, typer.Option(help="A feature directory, a bank file, or a name such as 'demo'.")],
    out: Annotated[Path, typer.Option(help="The directory that the pictures go to.")],
    dataset: Annotated[
        str | None, typer.Option(help=f"Where the bank's photos are from, one of {', '.join(DATASETS)}.")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="The directory of the data set.")] = None,
    split: Annotated[str, typer.Option(help="A split, or several joined by '+'.")] = "validation",
    cases: Annotated[int, typer.Option(min=1, help="Images in each of best, median and worst.")] = 3,
) -> None:
    """Show the best, the median and the worst images, and the failures sorted by what made them."""
    from experiments.commands.evaluate import check_features
    from experiments.runs.counted import count_bank
    from experiments.runs.counter import open_joined
    from experiments.runs.failures import CLASSES, analyse, by_cause, class_errors
    from experiments.runs.scenes import photo_source
    from libra_gym.banks import load_bank
    from libra_gym.rendering import causes_figure, gallery_figure

    counter, _ = open_joined(model)
    opened = load_bank(bank).split(split).wholes()
    check_features(counter.about, opened)
    photo_of = photo_source(opened, dataset, root)
    counted = count_bank(counter, opened)
    images = analyse(counted)
    ranked = sorted(images, key=lambda image: abs(image.error))
    mae = sum(abs(image.error) for image in images) / len(images)
    where = f"{len(images)} images of {opened.name}, {split}; MAE {mae:,.1f}"
    for name, chosen in pick(ranked, cases).items():
        maps = [_maps(counted, image, photo_of) for image in chosen]
        save_figure(gallery_figure(maps, f"{name.capitalize()} counts ({where})"), out / f"{name}.png")
    causes = by_cause(images)
    groups = {cause: (len(group), sum(abs(image.error) for image in group)) for cause, group in causes.items()}
    save_figure(causes_figure(CLASSES, class_errors(counted), groups), out / "causes.png")
    if causes:
        worst = [_maps(counted, group[0], photo_of, f"{cause}: ") for cause, group in causes.items()][:MOST_CAUSES]
        save_figure(gallery_figure(worst, f"The greatest error of each cause ({where})"), out / "failures.png")
    write_and_tell(out / "images.csv", _table(counted, ranked[::-1]).encode("utf-8", "surrogateescape"))


def pick(ranked: Sequence[Failure], number: int) -> dict[str, list[Failure]]:
    """The first, the middle and the last of images that are ranked by error; the worst one first among the last."""
    middle = max((len(ranked) - number) // 2, 0)
    return {
        "best": list(ranked[:number]),
        "median": list(ranked[middle : middle + number]),
        "worst": list(ranked[::-1][:number]),
    }


def _maps(counted: CountedBank, image: Failure, photo_of: PhotoOf, before: str = "") -> CountMaps:
    from experiments.runs.scenes import bank_scene
    from libra_gym.rendering import CountMaps

    place = counted.bank.images[image.image]
    patches = counted.bank.patches_of(image.image)
    scene = bank_scene(counted.bank, image.image, photo_of)
    shape = (place.rows, place.cols)
    share = f", {image.error / image.people:+.0%}" if image.people else ""
    return CountMaps(
        scene.pixels,
        counted.bank.counts[patches].cpu().numpy().reshape(shape),
        counted.people[patches].reshape(shape),
        (image.people, image.count),
        f"{before}{place.name}, error {image.error:+,.1f}{share}",
    )


def _table(counted: CountedBank, images: Sequence[Failure]) -> str:
    """A row for each image, the greatest error first."""
    import csv
    from io import StringIO

    from experiments.runs.failures import CLASSES

    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "people", "count", "error", "cause", *(f"patches {name}" for name in CLASSES)])
    for image in images:
        shares = (f"{share:.2f}" for share in image.shares)
        name = counted.bank.images[image.image].name
        writer.writerow([name, f"{image.people:g}", f"{image.count:.2f}", f"{image.error:.2f}", image.cause, *shares])
    return text.getvalue()
