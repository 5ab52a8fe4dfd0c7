"""`libra train`: learn from a feature bank, or go on with a run that was stopped (docs/training.md)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from agents.registry import ALGORITHMS, parse_changes
from experiments.commands.sources import MatmulName, given, warn_of_few
from libra_gym.errors import LibraError

if TYPE_CHECKING:
    from experiments.runs.directory import RunDirectory


RESUME_NOTES = {
    "sb3": "going on from last.zip: not bit for bit, since SB3 saves neither replay nor random state with it",
    "head": "a one-step head keeps no checkpoint: it begins again",
}


def train(
    context: typer.Context,
    bank: Annotated[
        str | None, typer.Option(help="A feature directory, a bank file, or a name such as 'demo'.")
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="Learn from this bank too (--split, or 'train' where it has none of that name); can be repeated."
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(help="Start from the scale of a finished run or model, or of dense or street, not from chance."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The directory of the run; it must not exist yet.")] = None,
    algo: Annotated[
        str, typer.Option(help=f"One of {', '.join(ALGORITHMS)}, or your own as package.module:Class.")
    ] = "libra_dqn",
    preset: Annotated[str, typer.Option(help="A preset of the algorithm's recipe, such as 'default' or 'paper'.")] = (
        "default"
    ),
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of everything random.")] = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Default: the preset's.")] = None,
    device: Annotated[str, typer.Option(help="'auto', 'cpu' or 'cuda'.")] = "auto",
    matmul: Annotated[
        MatmulName,
        typer.Option(help="How exact products of matrices are; less may be much faster, as the processor has it."),
    ] = MatmulName.highest,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, for instance batch_size=64 or env.max_steps=6.")
    ] = None,
    split: Annotated[str, typer.Option(help="The split to learn from.")] = "train",
    validation: Annotated[str, typer.Option(help="The split to choose the best model by.")] = "validation",
    checkpoint_minutes: Annotated[float, typer.Option(min=0.0, help="Save a checkpoint every so many minutes.")] = 5.0,
    sb3_zip: Annotated[bool, typer.Option("--sb3-zip", help="Save libra_dqn as SB3's zip too.")] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases too.")] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with this run; only --epochs may be given with it.")
    ] = None,
) -> None:
    """Train an agent or a one-step head on a feature bank; the best model is the one with the least validation MAE."""
    from experiments.runs import RunConfig, RunDirectory, plan
    from experiments.runs import train as train_run
    from experiments.runs.directory import command_line
    from libra_gym.banks import load_bank

    console = Console()
    if epochs is not None and any(text.partition("=")[0].strip() == "epochs" for text in change or ()):
        raise LibraError("--epochs and --set epochs=… say the same; give one of them.")
    if resume is not None:
        refuse_others(context)
        run = RunDirectory(resume)
        config = RunConfig.load(run.config_path)
        if epochs is not None:
            check_epochs(run, epochs)
            config = replace(config, epochs=epochs)
        if note := RESUME_NOTES.get(config.algorithm.kind):
            console.print(note, highlight=False)
    else:
        if bank is None or out is None:
            raise LibraError("`libra train` needs --bank and --out, or --resume with the directory of a run.")
        run = RunDirectory(out)
        run.check_free()
        config = plan(
            bank,
            algo,
            preset,
            seed=seed,
            device=device,
            epochs=epochs,
            changes=parse_changes(change or ()),
            train_split=split,
            validation_split=validation,
            checkpoint_minutes=checkpoint_minutes,
            sb3_zip=sb3_zip,
            wandb=wandb,
            also=also or (),
            init=init,
            matmul=matmul.value,
        )
    if config.algorithm.kind == "libra":
        warn_of_few(len(load_bank(config.bank).split(config.validation_split).wholes().images), console)
    with run.held(), run.undone_if_unlearnt(new=resume is None):
        run.begin(config, command_line())
        trained = train_run(run, config, console)
    if trained.best_epoch > 0:
        console.print(f"best: epoch {trained.best_epoch}, validation MAE {trained.best_mae:.2f}", highlight=False)
    if not trained.finished:
        console.print(f"stopped after {trained.epochs} of {config.epochs} epochs; go on with:", highlight=False)
        console.print(run.resume_command, soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(130)
    if not trained.learnt:
        raise LibraError(
            f"{str(run.path)!r} has made no update, as fewer transitions were stored than learning_starts; go on with "
            "`libra train --resume` and more --epochs, or start a new run with --set learning_starts=…"
        )
    console.print(f"{run.path} is finished", highlight=False, soft_wrap=True, markup=False)


def check_epochs(run: RunDirectory, epochs: int) -> None:
    """Refuse fewer epochs than a run has behind it."""
    from experiments.runs.checkpoint import Checkpoint

    checkpoint = Checkpoint.load(run.checkpoint_path)
    done = 0 if checkpoint is None else checkpoint.numbers["epoch"]
    if epochs < done:
        raise LibraError(f"{str(run.path)!r} has finished {done} epochs; --epochs {epochs} would be fewer.")


def refuse_others(context: typer.Context) -> None:
    """A run goes on as it began, so no other setting may come with --resume."""
    if others := given(context, *sorted(context.params.keys() - {"resume", "epochs"})):
        option = {"--change": "--set"}.get(others[0], others[0])
        raise LibraError(f"--resume takes all settings from the run; leave out {option}, or start a new run.")
