"""`libra show`: how a model weighs one photo, step by step (Sec. 4.1 of the paper; docs/figures.md)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from experiments.commands.sources import refuse_idle
from libra_gym.datasets import DATASETS
from libra_gym.errors import LibraError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure

    from experiments.runs.pictures import Region
    from libra_gym.bank import BankImage

DPI = 100
MOST_PATCHES = 120
"""Patches that a weighing figure can show and still be read."""


def show(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="The directory of a run (its best model), or a model file.")],
    out: Annotated[Path, typer.Option(help="The directory that the pictures go to.")],
    image: Annotated[Path | None, typer.Option(help="A photo.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="For a photo: the file with the weights of the model's backbone.")
    ] = None,
    points: Annotated[Path | None, typer.Option(help="For a photo: a CSV or JSON file with its head dots.")] = None,
    bank: Annotated[
        str | None, typer.Option(help="Instead of a photo: a feature directory, bank file or name.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="With --bank: the name of the image.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help=f"With --bank: where its photos are from, one of {', '.join(DATASETS)}.")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="With --bank: the directory of the data set.")] = None,
    region: Annotated[
        str | None, typer.Option(help="x,y,width,height in pixels; without it, where most people are.")
    ] = None,
    patch: Annotated[
        str | None, typer.Option(help="row,column of the patch whose Q values are shown, from 0,0 at the top left.")
    ] = None,
    gif: Annotated[bool, typer.Option("--gif", help="Also the whole photo's weighing as a GIF.")] = False,
    mp4: Annotated[bool, typer.Option("--mp4", help="Also the whole photo's weighing as a film.")] = False,
    device: Annotated[str, typer.Option(help="Where the backbone runs: 'cpu' or 'cuda'.")] = "cpu",
) -> None:
    """Draw how a photo is weighed: operators and values of a region step by step, Q values of a patch, a count map."""
    from experiments.commands.evaluate import check_features, model_backbone, model_kernel, model_scale
    from experiments.runs.config import check_device
    from experiments.runs.counted import count_bank
    from experiments.runs.counter import open_joined
    from experiments.runs.pictures import animate, draw_count_map, draw_weighing
    from experiments.runs.scenes import bank_scene, find_image, photo_scene, photo_source
    from libra_gym.banks import load_bank

    if (image is None) == (bank is None):
        raise LibraError("`libra show` needs either --image with a photo, or --bank and --name.")
    if image is not None:
        refuse_idle(context, "goes with --bank, not with --image", "name", "dataset", "root")
    else:
        refuse_idle(context, "is for a photo (--image)", "weights", "points", "device")
    counter, backbone = open_joined(model)
    if backbone is not None and weights is not None:
        raise LibraError(f"{str(model)!r} has its backbone in it; leave --weights out.")
    if image is not None:
        eye = (backbone or model_backbone(counter.about, weights)).to(check_device(device))
        about = counter.about
        scene = photo_scene(image, points, eye, model_kernel(about), model_scale(about), about.get("dataset", ""))
    else:
        assert bank is not None
        opened = load_bank(bank)
        check_features(counter.about, opened)
        if name is None:
            raise LibraError(f"--bank needs --name with one of its images, such as {opened.images[0].name!r}.")
        scene = bank_scene(opened, find_image(opened, name), photo_source(opened, dataset, root))
    counted = count_bank(counter, scene.bank)
    if counted.weighing is None:
        raise LibraError("A one-step head weighs nothing, so there are no steps to draw; take a run of an agent.")
    people = scene.bank.counts.numpy() if scene.truth_known and scene.bank.counts.any() else counted.people
    place = scene.bank.images[0]
    chosen = choose_region(region, patch, people.reshape(place.rows, place.cols), place, scene.scale)
    known = scene.truth_known
    figures = {
        "weighing": draw_weighing(counted, scene.pixels, chosen, truth_known=known, needle=_needle_name(model)),
        "count_map": draw_count_map(counted, scene.pixels, truth_known=known),
    }
    for title, figure in figures.items():
        save_figure(figure, out / f"{title}.png")
    for suffix in [ending for ending, wanted in ((".gif", gif), (".mp4", mp4)) if wanted]:
        animate(counted, scene.pixels, out / f"weighing{suffix}")
        _tell(out / f"weighing{suffix}")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all, and say where."""
    from io import BytesIO

    file = BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    write_and_tell(path, file.getvalue())


def write_and_tell(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all, and say where."""
    from libra_gym.features.storage import write_whole

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LibraError(f"{str(path.parent)!r} cannot be made ({error.strerror}); give another --out.") from None
    write_whole(path, data)
    _tell(path)


def _tell(path: Path) -> None:
    Console().print(str(path), soft_wrap=True, markup=False, highlight=False)


def choose_region(
    region: str | None, patch: str | None, people: npt.NDArray[np.number], image: BankImage, scale: float = 1.0
) -> Region:
    """The region as a user gave it, widened to whole patches; by default round the patch, or where most people are.

    It is given in the photo's own pixels; `scale` is how many times larger the photo was looked at.
    """
    from dataclasses import replace

    from experiments.runs.pictures import REGION, crowded_region, region_at

    rows, cols = people.shape
    place = None if patch is None else _whole_numbers(patch, 2, "--patch", "row,column")
    if place is not None and not (0 <= place[0] < rows and 0 <= place[1] < cols):
        raise LibraError(f"--patch {patch} is not in the photo, which has {rows} rows and {cols} columns of patches.")
    if region is not None:
        chosen = region_at(people, *_in_patches(region, image, scale))
    elif place is not None:
        height, width = min(REGION[0], rows), min(REGION[1], cols)
        top = min(max(place[0] - height // 2, 0), rows - height)
        left = min(max(place[1] - width // 2, 0), cols - width)
        chosen = region_at(people, top, left, height, width)
    else:
        chosen = crowded_region(people)
    if place is None:
        return chosen
    if not (chosen.top <= place[0] < chosen.top + chosen.rows and chosen.left <= place[1] < chosen.left + chosen.cols):
        raise LibraError(
            f"--patch {patch} is not in the region, which has the rows {chosen.top} to {chosen.top + chosen.rows - 1} "
            f"and the columns {chosen.left} to {chosen.left + chosen.cols - 1}."
        )
    return replace(chosen, patch=(place[0], place[1]))


def _in_patches(region: str, image: BankImage, scale: float) -> tuple[int, int, int, int]:
    """Top, left, rows and columns of the patches that a region in pixels touches."""
    from libra_gym.counts import PATCH

    x, y, width, height = _whole_numbers(region, 4, "--region", "x,y,width,height in pixels")
    tall, wide = round(image.size[0] / scale), round(image.size[1] / scale)
    if x < 0 or y < 0 or width < 1 or height < 1 or x + width > wide or y + height > tall:
        raise LibraError(
            f"--region {region} does not lie in the photo, which has {wide} × {tall} pixels (width × height)."
        )
    top, left = min(int(y * scale) // PATCH, image.rows - 1), min(int(x * scale) // PATCH, image.cols - 1)
    rows = min(math.ceil((y + height) * scale / PATCH), image.rows) - top
    cols = min(math.ceil((x + width) * scale / PATCH), image.cols) - left
    if rows * cols > MOST_PATCHES:
        raise LibraError(
            f"--region {region} has {rows} × {cols} patches, but no more than {MOST_PATCHES} can be read in one "
            "figure; take a smaller one, or --gif for the whole photo."
        )
    return top, left, rows, cols


def _whole_numbers(text: str, number: int, option: str, form: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != number:
        raise LibraError(f"{option} is {text!r}, but it must be {form}.")
    return found


def _needle_name(model: Path) -> str:
    """What the numbers per action are: an imitator has no Q values, but logits."""
    from experiments.runs.counted import discount_of

    return "Logits" if model.is_dir() and discount_of(model) is None else "Q values"
