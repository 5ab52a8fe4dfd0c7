"""`libra release`: join a run's best model with its backbone into the one file that `libra count` takes."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from experiments.commands.sources import check_place, refuse_idle
from libra_gym.datasets import DATASETS
from libra_gym.errors import LibraError

if TYPE_CHECKING:
    from torch import Tensor

    from experiments.runs.config import RunConfig
    from libra_gym.backbones import Backbone
    from libra_gym.bank import FeatureBank
    from libra_gym.counter import Counter
    from libra_gym.datasets import Photo
    from libra_gym.metrics import Score
    from libra_gym.weigher import Weigher


class StoredAs(StrEnum):
    """How weights are stored; they are always computed with in single precision."""

    float16 = "float16"
    float32 = "float32"


def release(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The directory of a run.")],
    out: Annotated[Path, typer.Option(help="The model file to write.")],
    weights: Annotated[
        str | None,
        typer.Option(
            help="The file of the backbone that the run's features came from, or its name; a run of `libra pretrain "
            "--method weighing` has its own."
        ),
    ] = None,
    bank: Annotated[
        str | None, typer.Option(help="The bank with the validation split; the run's own if not given.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="Take the model of the last epoch, not of the best.")] = False,
    card: Annotated[
        Path | None, typer.Option(help="A Markdown file with the sections Limits and Licence (of the data), and more.")
    ] = None,
    dtype: Annotated[StoredAs, typer.Option(help="How weights are stored.")] = StoredAs.float16,
    dataset: Annotated[
        str | None, typer.Option(help=f"Compare the file with the run on photos: one of {', '.join(DATASETS)}.")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="The directory of the data set.")] = None,
    split: Annotated[str, typer.Option(help="The photos to compare on.")] = "validation",
) -> None:
    """Make a model file of a run: backbone, scale, interval and card; with --dataset also count photos with it."""
    from experiments.card import read_notes
    from experiments.runs.config import is_pretraining
    from experiments.runs.directory import RunDirectory
    from libra_gym.counter import Counter
    from libra_gym.datasets import open_dataset
    from libra_gym.uncertainty import Uncertainty, fewest

    console = Console()
    if out.resolve().parent == run.resolve():
        raise LibraError(f"{str(out)!r} is among the files of the run itself; give another --out.")
    check_place(out)
    if out.suffix != ".safetensors":
        raise LibraError(
            f"A model file's name ends with .safetensors, which {str(out)!r} does not; give another --out."
        )
    directory = RunDirectory(run)
    if not directory.config_path.is_file():
        raise LibraError(f"{str(run)!r} is no directory of a run: there is no {directory.config_path.name} in it.")
    if dataset is None:
        refuse_idle(context, "is for counting photos with the file (--dataset)", "root", "split")
    notes = {} if card is None else read_notes(card)
    photos = [] if dataset is None else open_dataset(dataset, root).photos(split)
    which = "last" if last else "best"
    if _learnt_whole(run):
        if weights is not None or bank is not None:
            raise LibraError(f"The models of {str(run)!r} have their backbone in them; leave out --weights and --bank.")
        made = _whole(run, which, notes)
    elif is_pretraining(directory.config_path):
        raise LibraError(
            f"{str(run)!r} has made a backbone, which counts nothing by itself; make a bank of its features (`libra "
            f"features --weights {run / 'best.safetensors'}`), train a scale on it (`libra train`), and release "
            "that run."
        )
    elif weights is None:
        raise LibraError("`libra release` needs --weights, the backbone that the run's features came from.")
    else:
        made = _joined(run, which, weights, bank, notes)
    score = made.score
    if len(score.records) < fewest():
        raise LibraError(
            f"{str(run)!r} was judged on {len(score.records)} validation photos, but a model file's interval needs at "
            f"least {fewest()}; train anew with more (of your own, put so many into a directory `validation` first)."
        )
    interval = Uncertainty.fit([r.count for r in score.records], [r.people for r in score.records])
    counter = Counter(made.backbone, made.weigher, interval, made.card)
    counter.save(out, dtype.value, head=made.head)
    console.print(score.table())
    console.print(f"{interval}.")
    console.print(f"{out} is written, {out.stat().st_size / 1e6:.1f} MB", soft_wrap=True, markup=False)
    if photos:
        _compare(counter, Counter.load(out), photos, dtype.value, console)


class _Made(NamedTuple):
    """What a run has made, and how well it counts the validation photos."""

    backbone: Backbone
    weigher: Weigher
    head: dict[str, Tensor]
    score: Score
    card: dict[str, Any]


def _joined(run: Path, which: str, weights: str, bank: str | None, notes: dict[str, str]) -> _Made:
    """The scale of a run of `libra train`, and the backbone that its bank came from."""
    from experiments.card import make_card
    from experiments.commands.evaluate import evaluate_bank, model_backbone
    from experiments.runs.config import RunConfig
    from experiments.runs.counter import open_counter
    from experiments.runs.directory import RunDirectory
    from libra_gym.weigher import Weigher

    config = RunConfig.load(RunDirectory(run).config_path)
    weigher = open_counter(run, which)
    if not isinstance(weigher, Weigher):
        raise LibraError(
            f"{str(run)!r} is a run of {config.algo!r}; only models of libra_dqn, bc and dagger can be released."
        )
    backbone = model_backbone(weigher.about, weights)
    images = _validation(config, bank)
    score = replace(evaluate_bank(weigher, images), bank=f"{images.name} {config.validation_split}")
    return _Made(backbone, weigher, _head(weights), score, make_card(config, score, notes, weights))


def _learnt_whole(run: Path) -> bool:
    """Whether this is a run of `libra pretrain --method weighing`, whose models are whole."""
    from experiments.runs.directory import RunDirectory
    from experiments.runs.pretraining import PretrainConfig

    try:
        return PretrainConfig.load(RunDirectory(run).config_path).settings["method"] == "weighing"
    except LibraError:
        return False


def _whole(run: Path, which: str, notes: dict[str, str]) -> _Made:
    """The model of such a run, judged on the run's own validation photos."""
    from experiments.card import make_weighing_card
    from experiments.commands.evaluate import evaluate_photos
    from experiments.runs.directory import RunDirectory
    from experiments.runs.pretraining import PretrainConfig, photos_hash
    from libra_gym.counter import Counter
    from libra_gym.datasets import open_dataset

    directory = RunDirectory(run)
    config = PretrainConfig.load(directory.config_path)
    path = directory.model_path(which)
    model = Counter.load(path)
    root = None if config.root is None else Path(config.root)
    if config.photos:
        dataset = open_dataset(config.dataset, root)
        learnt = [dataset.photos(config.train_split)]
        learnt += [open_dataset(name, Path(directory)).photos(split) for name, split, directory in config.also]
        config.check_photos(photos_hash(chain(*learnt), dataset.photos(config.validation_split)))
    score = evaluate_photos(model.weigher, config.dataset, root, config.validation_split, model.backbone)
    card = make_weighing_card(config, model.weigher.about, score, notes)
    return _Made(model.backbone, model.weigher, _head(str(path)), score, card)


def _validation(config: RunConfig, bank: str | None) -> FeatureBank:
    from experiments.runs.config import place
    from libra_gym.banks import load_bank

    if bank is not None and place(bank) != config.bank:
        return load_bank(bank).split(config.validation_split).wholes()
    try:
        load_bank(config.bank)
    except LibraError as error:
        raise LibraError(f"The run's own bank cannot be opened ({error}); give --bank.") from None
    return config.open_bank()[1]  # if it is still what the run began with


def _head(weights: str) -> dict[str, Tensor]:
    """The head that the backbone's file may hold from its pre-training."""
    from agents.state import under
    from libra_gym.backbones import read_weights, weights_file

    return {} if weights in ("imagenet", "random") else under("head.", read_weights(weights_file(weights)))


def _compare(whole: Counter, stored: Counter, photos: list[Photo], dtype: str, console: Console) -> None:
    """Count photos with the model as it was trained and with the file, both as `libra count` does."""
    import numpy as np

    from libra_gym.counts import inside

    counts: dict[str, list[float]] = {"float32": [], dtype: []}
    people = []
    with console.status("") as status:
        for number, photo in enumerate(photos):
            status.update(f"counting photo {number + 1} of {len(photos)}")
            pixels, points = photo.image(), photo.points()
            people.append(int(inside(points, (pixels.shape[0], pixels.shape[1])).sum()))
            counts["float32"].append(whole.count(pixels).count)
            if dtype != "float32":
                counts[dtype].append(stored.count(pixels).count)
    table = Table("stored as", title=f"{len(photos)} photos")
    for column in ("MAE", "bias", "largest change of a count"):
        table.add_column(column, justify="right")
    for name, numbers in counts.items():
        error = np.subtract(numbers, people)
        change = np.abs(np.subtract(numbers, counts["float32"])).max()
        table.add_row(name, f"{np.abs(error).mean():.2f}", f"{error.mean():+.2f}", f"{change:.2f}")
    console.print(table)
