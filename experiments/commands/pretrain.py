"""`libra pretrain`: fine-tune a backbone as a one-step counter, or go on with that (docs/pretraining.md)."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from libra_gym.errors import LibraError
from libra_gym.workers import default_workers


class Method(StrEnum):
    """What the backbone learns to do."""

    bcnet = "bcnet"
    tasselnetv2 = "tasselnetv2"
    classification = "classification"
    regression = "regression"
    weighing = "weighing"


class Cache(StrEnum):
    """Where the frozen layers' maps are kept."""

    disk = "disk"
    ram = "ram"
    none = "none"


class Precision(StrEnum):
    """In what numbers the backbone computes."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


def pretrain(
    context: typer.Context,
    method: Annotated[
        Method,
        typer.Option(
            help="'classification' and 'regression' train a 1×1 head on a frozen backbone; 'weighing' trains backbone "
            "and scale of a finished model together."
        ),
    ] = Method.bcnet,
    dataset: Annotated[str | None, typer.Option(help="As for `libra features`.")] = None,
    root: Annotated[Path | None, typer.Option(help="The directory of the data set.")] = None,
    out: Annotated[Path | None, typer.Option(help="The directory of the run; it must not exist yet.")] = None,
    backbone: Annotated[str, typer.Option(help="A torchvision name.")] = "vgg16",
    weights: Annotated[
        str, typer.Option(help="Where the backbone begins: a file, imagenet, dense or street.")
    ] = "imagenet",
    init: Annotated[
        str | None,
        typer.Option(
            help="Begin with backbone and head of this counting checkpoint, or of dense or street; for 'weighing' with "
            "this model's scale, and its backbone unless --weights names another."
        ),
    ] = None,
    train_from: Annotated[
        str | None, typer.Option(help="The first layer that learns, such as conv4_1; 'head': none of the backbone.")
    ] = None,
    preset: Annotated[str, typer.Option(help="Of the method's recipe: 'default' or 'paper'.")] = "default",
    epochs: Annotated[int | None, typer.Option(min=1, help="Default: the preset's.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of everything random.")] = 0,
    split: Annotated[str, typer.Option(help="The split to learn from.")] = "train",
    validation: Annotated[str, typer.Option(help="The split to choose the best epoch by.")] = "validation",
    also: Annotated[
        list[str] | None,
        typer.Option(help="Learn from another data set too: NAME=DIR, or NAME:SPLIT=DIR for a split other than train."),
    ] = None,
    cache: Annotated[Cache, typer.Option(help="Where the frozen layers' maps are kept.")] = Cache.disk,
    cache_dir: Annotated[Path | None, typer.Option(help="Default: in the run's directory; runs may share one.")] = None,
    cache_gb: Annotated[float, typer.Option(min=0.0, help="The most that is kept.")] = 16.0,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes that read photos where nothing is cached.")
    ] = default_workers(),
    device: Annotated[str, typer.Option(help="'auto', 'cpu' or 'cuda'.")] = "auto",
    precision: Annotated[
        Precision, typer.Option(help="'auto': fp32 on a CPU, half on CUDA. Not every CPU can do bf16.")
    ] = Precision.auto,
    change: Annotated[list[str] | None, typer.Option("--set", help="key=value, for instance batch_size=8.")] = None,
    wandb: Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases too.")] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with this run; only --epochs may be given with it.")
    ] = None,
) -> None:
    """Fine-tune a backbone as a one-step counter; best.safetensors is for `libra features --weights`.

    With --method weighing, train a finished model further, backbone and scale together; `libra count` takes the result.
    """
    from agents.pretraining import pretrain_settings
    from agents.pretraining.weighing import NEEDS_MODEL
    from agents.registry import parse_changes
    from experiments.commands.sources import given, parse_source, refuse_idle, warn_of_few
    from experiments.commands.train import check_epochs, refuse_others
    from experiments.runs.directory import RunDirectory, command_line
    from experiments.runs.pretraining import PretrainConfig, make_accelerator, new_wandb_id, photos_hash, prepare
    from experiments.runs.pretraining import pretrain as pretrain_run
    from libra_gym.backbones import learnt_scale, weights_file
    from libra_gym.counter import Counter

    if resume is not None:
        refuse_others(context)
        run = RunDirectory(resume, "pretrain")
        config = PretrainConfig.load(run.config_path)
        if epochs is not None:
            check_epochs(run, epochs)
            config = replace(config, settings={**config.settings, "epochs": epochs})
    else:
        if dataset is None or out is None:
            raise LibraError("`libra pretrain` needs --dataset and --out, or --resume with the directory of a run.")
        if init is not None and method is not Method.weighing:
            refuse_idle(context, "has no use where --init gives the backbone and its head", "weights")
        if method is Method.weighing and init is None:
            raise LibraError(NEEDS_MODEL)  # before a backbone is downloaded
        if cache is not Cache.disk:
            refuse_idle(context, f"is for a cache on disk, and --cache is {cache.value}", "cache_dir")
        if cache is Cache.none:
            refuse_idle(context, "limits a cache, and --cache is none", "cache_gb")
        run = RunDirectory(out, "pretrain")
        changes = parse_changes(change or ())
        for name, value in (("method", method.value), ("epochs", epochs), ("train_from", train_from)):
            if value is not None and name in changes:
                raise LibraError(f"--set {name}=… says what --{name.replace('_', '-')} says; leave it out.")
            if value is not None:
                changes[name] = value
        changes.setdefault("scale", learnt_scale(init or weights))  # photos keep the size that they learnt from
        settings = pretrain_settings(method.value, preset, changes)
        others = [parse_source(text, "--also") for text in also or ()]
        another = method is Method.weighing and given(context, "weights")  # under the scale of --init
        start = weights if init is None or another else init
        if start not in ("imagenet", "random"):
            start = str(weights_file(start).absolute())
        if method is Method.weighing and init is not None and not given(context, "backbone"):
            backbone = Counter.load(init).backbone.name
        config = PretrainConfig(
            settings=settings.to_dict(),
            preset=preset,
            dataset=dataset,
            root=None if root is None else str(root.absolute()),
            train_split=split,
            validation_split=validation,
            backbone=backbone,
            weights=start,
            init=None if init is None else str(weights_file(init).absolute()),
            seed=seed,
            device=device,
            cache=cache.value,
            cache_dir="stem" if cache_dir is None else str(cache_dir.absolute()),
            cache_gb=cache_gb,
            workers=workers,
            wandb=new_wandb_id() if wandb else None,
            precision=precision.value,
            also=tuple((name, part or "train", str(place)) for name, part, place in others),
        )
    accelerator = make_accelerator(config.device, config.settings["accumulate"], config.precision)
    console = Console(quiet=not accelerator.is_main_process)
    if resume is None and accelerator.is_main_process:
        run.check_free()
    trainer = prepare(config, accelerator, console, run.path)
    found = photos_hash(*([scene.photo for scene in scenes] for scenes in (trainer.training, trainer.validation)))
    config.check_photos(found)
    config = replace(config, photos=found)
    if config.settings["method"] == Method.weighing:
        warn_of_few(len(trainer.validation), console)
    if not accelerator.is_main_process:
        accelerator.wait_for_everyone()  # for the run's directory
        pretrain_run(run, config, trainer, console)
        return
    with run.held(), run.undone_if_unlearnt(new=resume is None):
        run.begin(config, command_line())
        accelerator.wait_for_everyone()
        trained = pretrain_run(run, config, trainer, console)
    console.print(f"best: epoch {trained.best_epoch}, validation MAE {trained.best_mae:.2f}", highlight=False)
    if not trained.finished:
        again = f", by {accelerator.num_processes} processes as before," if accelerator.num_processes > 1 else ""
        console.print(
            f"stopped after {trained.epochs} of {config.settings['epochs']} epochs; go on{again} with:", highlight=False
        )
        console.print(run.resume_command, soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(130)
    console.print(f"{run.model_path('best')} is ready", highlight=False, soft_wrap=True, markup=False)
