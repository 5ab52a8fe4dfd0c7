"""`libra evaluate`: how well a trained model counts, on a feature bank or on photos straight from a data set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from experiments.commands.sources import check_place, refuse_idle
from libra_gym.bank import FeatureBank
from libra_gym.banks import load_bank
from libra_gym.datasets import DATASETS, open_dataset
from libra_gym.errors import LibraError, is_full

if TYPE_CHECKING:
    from experiments.runs.counter import Counter
    from libra_gym.backbones import Backbone
    from libra_gym.counts import Kernel
    from libra_gym.metrics import Score


FEWEST_TO_GROUP = 8
"""Fewer images than this are not grouped by the size of their crowds."""


class ReadoutName(StrEnum):
    """What an interval counts for."""

    mean = "mean"
    middle = "middle"
    expectation = "expectation"


def evaluate(
    context: typer.Context,
    model: Annotated[
        Path, typer.Argument(help="A run of train or pretrain (its best model), a model file, 'dense' or 'street'.")
    ],
    bank: Annotated[
        str | None, typer.Option(help="A feature directory, a bank file, or a name such as 'demo'.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help=f"Photos instead: one of {', '.join(DATASETS)}.")] = None,
    root: Annotated[Path | None, typer.Option(help="The directory of the data set.")] = None,
    split: Annotated[str, typer.Option(help="A split, or several joined by '+'.")] = "validation",
    weights: Annotated[
        str | None,
        typer.Option(help="For photos: the backbone's .safetensors or .pth file, imagenet, dense or street."),
    ] = None,
    readout: Annotated[
        ReadoutName, typer.Option(help="Bin means or middles; 'expectation' is for one-step classifiers.")
    ] = ReadoutName.mean,
    one_step: Annotated[
        bool,
        typer.Option("--one-step", help="Count with the one-step head that the model's backbone was trained with."),
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the people and the count of each image to this file.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Compare image by image with the counts in this file of --csv.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where the backbone runs: 'cpu' or 'cuda'.")] = "cpu",
) -> None:
    """Count the images of a bank or data set, and print the errors."""
    from experiments.runs.config import check_device
    from experiments.runs.counter import open_joined
    from libra_gym.paired import compare, read_counts

    if (bank is None) == (dataset is None):
        raise LibraError("`libra evaluate` needs either --bank or --dataset.")
    if bank is not None:
        refuse_idle(context, "is for photos (--dataset), and --bank has their features", "root", "weights", "device")
    check_place(json)
    check_place(csv)
    others = None if against is None else read_counts(against)
    counter, backbone = open_joined(model, one_step=one_step)
    _check_readout(counter, readout)
    if backbone is not None and weights is not None:
        raise LibraError(f"{str(model)!r} has its backbone in it; leave --weights out.")
    if bank is not None:
        images = load_bank(bank).split(split).wholes()
        score = replace(evaluate_bank(counter, images, readout.value), bank=f"{images.name} {split}")
    else:
        assert dataset is not None
        place = str(check_device(device))
        eye = backbone or model_backbone(counter.about, weights, place)
        score = evaluate_photos(counter, dataset, root, split, eye.to(place), readout.value)
    if json is not None:  # files first: whoever reads the table may stop before its end
        score.save_json(json)
    if csv is not None:
        score.save_csv(csv)
    console = Console()
    console.print(score.table())
    if len(score.records) >= FEWEST_TO_GROUP:
        console.print(score.crowd_table())
    if others is not None:
        assert against is not None
        console.print(compare(score, others).table(f"against {against.name}"))


def _check_readout(counter: Counter, readout: ReadoutName) -> None:
    """Refuse a readout that the model does not have before it looks at any photo."""
    from experiments.runs.counter import HeadCounter
    from libra_gym.weigher import Weigher

    if isinstance(counter, HeadCounter):
        counter.check_readout(readout.value)
    elif readout is ReadoutName.expectation:
        raise LibraError(
            "--readout expectation is for one-step classifiers; what an agent weighs is read as mean or middle, and "
            "--one-step counts with the head of its backbone instead."
        )
    elif readout is ReadoutName.middle and isinstance(counter, Weigher) and counter.quantizer is None:
        raise LibraError("--readout middle is for intervals, and this model weighs real-valued counts; leave it out.")


def evaluate_bank(counter: Counter, bank: FeatureBank, readout: str = "mean") -> Score:
    """Count a bank's images, if its features are of the kind that the model knows."""
    check_features(counter.about, bank)
    return counter.evaluate(bank, readout)


def check_features(about: dict[str, Any], bank: FeatureBank) -> None:
    """Refuse a bank whose features are of other weights than those that a model was trained on."""
    trained, given = about.get("weights"), bank.meta.get("weights")
    if trained is not None and given is not None and given not in (trained, about.get("stored_weights")):
        raise LibraError(
            f"Bank {bank.name!r} holds features of the weights {given[:12]}…, but the model was trained on those of "
            f"{trained[:12]}…; make a bank with the model's own weights."
        )


def model_backbone(about: dict[str, Any], weights: str | None, device: str = "cpu") -> Backbone:
    """The backbone that a model was trained on, from a file with its weights."""
    from libra_gym.backbones import load_backbone

    if "backbone" not in about or "weights" not in about:
        raise LibraError(
            "The model does not say which backbone it was trained on, so photos cannot be counted with it."
        )
    if weights is None:
        raise LibraError(f"Photos need the weights of the model's backbone {about['backbone']!r}; give --weights FILE.")
    backbone = load_backbone(about["backbone"], weights, device)
    if backbone.weights_hash != about["weights"]:
        raise LibraError(
            f"{weights!r} holds the weights {backbone.weights_hash[:12]}…, but the model was trained on the "
            f"features of {about['weights'][:12]}…; give the file it was trained with."
        )
    return backbone


def evaluate_photos(
    counter: Counter, dataset: str, root: Path | None, split: str, backbone: Backbone, readout: str = "mean"
) -> Score:
    """Count photos as `libra count` does: what the model's own backbone sees has single precision, and is not kept."""
    import torch

    from experiments.counting import passing_bar
    from libra_gym.features import build_features, open_features

    photos = open_dataset(dataset, root)
    for photo in photos.photos(split):
        photo.points()  # a file of dots that cannot be read should not end a long count
    with TemporaryDirectory(ignore_cleanup_errors=True) as cache:  # Windows removes no file that a bank is mapped from
        about = counter.about
        with passing_bar(Console(stderr=True)) as bar, _temporary(cache):
            task = bar.add_task("photos", total=None)
            build_features(
                photos,
                split,
                backbone,
                cache,
                kernel=model_kernel(about),
                scale=model_scale(about),
                dtype=torch.float32,
                workers=0,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
                remedy="mend it, or leave such photos out by their names, as in --split test:-IMG_8",
            )
        bank = replace(open_features(cache), name=f"{dataset} {split}")
        return counter.evaluate(bank, readout)


@contextmanager
def _temporary(directory: str) -> Iterator[None]:
    """Tell of a full disk of temporary files what it takes to mend."""
    try:
        yield
    except LibraError as error:
        if not is_full(error.__cause__):
            raise
        raise LibraError(
            f"There is no room for temporary files in {str(Path(directory).parent)!r}; make room there, or name "
            "another directory in the environment variable TMPDIR."
        ) from None


def model_scale(about: dict[str, Any]) -> float:
    """How many times larger than they are photos were when the model's training bank was made."""
    return float(about.get("scale", 1.0))


def model_kernel(about: dict[str, Any]) -> Kernel:
    """The kernel of the model's training bank: only the figures per patch depend on it."""
    from libra_gym.counts import DEFAULT_KERNEL, KERNELS, Kernel

    given = about.get("kernel")
    return Kernel.from_dict(given) if isinstance(given, dict) else KERNELS[given or DEFAULT_KERNEL]
