"""`libra features`: make a feature cache, go on with one, or check one (docs/features.md)."""

from __future__ import annotations

import logging
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from experiments.commands.sources import refuse_idle
from experiments.runs.config import check_device
from libra_gym.backbones import learnt_scale, load_backbone
from libra_gym.bank import FeatureBank
from libra_gym.counts import DEFAULT_KERNEL, KERNELS
from libra_gym.datasets import DATASETS, open_dataset
from libra_gym.errors import LibraError
from libra_gym.features import Manifest, build_features, open_features, verify_features
from libra_gym.features.build import PHOTOS_PER_SHARD
from libra_gym.workers import default_workers

app = typer.Typer(
    add_completion=False, help="Make a feature cache, go on with one, or check one.", invoke_without_command=True
)
console = Console()


class Crops(StrEnum):
    """What is taken from a training photo."""

    none = "none"
    paper = "paper"


class Storage(StrEnum):
    """How features are stored."""

    fp16 = "fp16"
    fp32 = "fp32"


class Precision(StrEnum):
    """In what numbers the backbone computes."""

    fp32 = "fp32"
    bf16 = "bf16"


@app.callback()
def features(
    context: typer.Context,
    dataset: Annotated[str, typer.Option(help=f"One of {', '.join(DATASETS)}.")] = "",
    root: Annotated[Path | None, typer.Option(help="The directory of the data set.")] = None,
    split: Annotated[str, typer.Option(help="A split, or several joined by '+'.")] = "train+validation",
    out: Annotated[Path | None, typer.Option(help="The directory of the cache.")] = None,
    backbone: Annotated[str, typer.Option(help="A torchvision name; ':multi' behind it takes three levels.")] = "vgg16",
    weights: Annotated[
        str, typer.Option(help="A .safetensors or .pth file, dense or street, or imagenet to download.")
    ] = "imagenet",
    kernel: Annotated[str, typer.Option(help=f"How heads are spread: {', '.join(KERNELS)}.")] = DEFAULT_KERNEL,
    crops: Annotated[Crops, typer.Option(help="'paper': its 18 crops of each training photo.")] = Crops.none,
    mirror: Annotated[bool, typer.Option("--mirror", help="Also the mirror of each training photo.")] = False,
    grids: Annotated[
        bool,
        typer.Option("--grids", help="Also the grids half a patch apart of each training photo; same pass."),
    ] = False,
    scale: Annotated[
        float | None,
        typer.Option(
            help="Make photos so many times larger; below 1, crowds get denser. Not given: as the weights learnt."
        ),
    ] = None,
    dtype: Annotated[Storage, typer.Option(help="How features are stored.")] = Storage.fp16,
    precision: Annotated[
        Precision, typer.Option(help="In what the backbone computes. Not every CPU can do bf16.")
    ] = Precision.fp32,
    device: Annotated[str, typer.Option(help="'auto' or a torch device.")] = "auto",
    workers: Annotated[int, typer.Option(min=0, help="Processes that read photos.")] = default_workers(),
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable photos out and record them.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Throw away what is there.")] = False,
) -> None:
    """Make a feature cache, or go on with one that was begun; `verify` checks one."""
    if context.invoked_subcommand is not None:
        refuse_idle(context, f"is not for `libra features {context.invoked_subcommand}`", *context.params)
        return
    if not dataset or out is None:
        raise LibraError("`libra features` needs --dataset and --out; `libra features --help` tells all of its options")
    if kernel not in KERNELS:
        raise LibraError(f"there is no kernel {kernel!r}; the kernels are {', '.join(KERNELS)}")
    logging.getLogger("libra_gym").setLevel(logging.INFO)
    photos = open_dataset(dataset, root)  # a mistake in it is told before weights are downloaded
    eye = load_backbone(backbone, weights, _device(device))
    if scale is None:
        scale = learnt_scale(weights) if crops is Crops.none else 1.0
        if scale != 1.0:
            console.print(f"photos are looked at {scale:g} times as large as they are, as {weights} learnt")
    start = time.perf_counter()
    try:
        with _progress() as bar:
            task = bar.add_task("photos", total=None)

            def tell(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)
                if not console.is_terminal and done % PHOTOS_PER_SHARD == 0:  # a file shows no bar
                    console.print(f"{done} of {total} photos")

            manifest = build_features(
                photos,
                split,
                eye,
                out,
                kernel=KERNELS[kernel],
                crops=crops.value,
                mirror=mirror,
                grids=grids,
                scale=scale,
                dtype=torch.float16 if dtype is Storage.fp16 else torch.float32,
                precision=torch.bfloat16 if precision is Precision.bf16 else torch.float32,
                workers=workers,
                skip_bad=skip_bad,
                rebuild=rebuild,
                progress=tell,
            )
    except KeyboardInterrupt:
        again = "the same command without --rebuild" if rebuild else "the same command"
        console.print(f"stopped; {again} goes on with {out}", soft_wrap=True, markup=False)
        raise typer.Exit(130) from None
    _report(open_features(out), manifest)
    console.print(f"{out} is ready ({time.perf_counter() - start:.0f} s)", soft_wrap=True, markup=False)


@app.command()
def verify(directory: Annotated[Path, typer.Argument(help="The directory of the cache.")]) -> None:
    """Compare each shard with its checksum."""
    faults = verify_features(directory)
    if faults:
        raise LibraError("; ".join(faults))
    _report(open_features(directory), Manifest.load(directory))
    console.print(f"{directory} is as it was written", soft_wrap=True, markup=False)


def _report(bank: FeatureBank, manifest: Manifest) -> None:
    """What is in a cache."""
    table = Table(show_header=False)
    table.add_row("images", f"{len(bank.images):,}")
    table.add_row("patches", f"{len(bank):,} of {bank.channels} features")
    table.add_row("people", f"{bank.people.sum().item():,.0f}")
    table.add_row("patches with nobody", f"{(bank.intervals == 0).double().mean().item():.1%}")
    table.add_row("highest interval", f"{int(bank.intervals.max())}")
    size, files = sum(shard.bytes for shard in manifest.shards) / 1e6, len(manifest.shards)
    table.add_row("size", f"{size:,.1f} MB, {files} {'shard' if files == 1 else 'shards'}")
    for photo in manifest.skipped:
        table.add_row("left out", photo.reason)
    console.print(table)


class _Rate(ProgressColumn):
    """Photos per second."""

    def render(self, task: Task) -> Text:
        """The rate, once there is one."""
        return Text(f"{task.speed:.2f}/s" if task.speed else "")


def _progress() -> Progress:
    text = TextColumn("{task.description}")
    return Progress(text, BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn(), console=console)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return check_device(name)
