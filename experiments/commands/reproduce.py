"""`libra reproduce`: one of the paper's tables, by one command, beside the paper's figures (docs/reproduce.md)."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from experiments.commands.sources import MatmulName, refuse_idle
from libra_gym.datasets import DATASETS
from libra_gym.errors import LibraError
from libra_gym.models import RELEASED, find_model

if TYPE_CHECKING:
    from experiments.reproduce.executors import Executor
    from experiments.reproduce.report import Report

METHODS = ("bcnet", "tasselnetv2")
"""Pre-trainings that the paper's rows are built on."""

WHERE = tuple(name for name in DATASETS if name != "synthetic")
"""Data sets that a table can be made on: those of photos."""


class TableName(StrEnum):
    """The paper's tables."""

    sota = "sota"
    cross = "cross"
    ablation = "ablation"
    game = "game"
    steps = "steps"
    tolerance = "tolerance"
    plugin = "plugin"
    seeds = "seeds"
    speed = "speed"


class BudgetName(StrEnum):
    """How long to train."""

    small = "small"
    full = "full"


class PrecisionName(StrEnum):
    """In what numbers a backbone computes."""

    fp32 = "fp32"
    bf16 = "bf16"


class PresetName(StrEnum):
    """How LibraNet is trained."""

    default = "default"
    paper = "paper"


_OF_FIGURES = ("root", "backbone", "seeds", "budget", "precision", "matmul", "dataset", "preset")
"""Options that a table of times has no use for."""


def reproduce(
    context: typer.Context,
    table: Annotated[TableName, typer.Argument(help="Which of the paper's tables.")],
    out: Annotated[Path, typer.Option(help="Where the table goes; what is made on the way is kept in OUT/cache.")],
    weights: Annotated[str, typer.Option(help="ImageNet weights of VGG16: a file, or 'imagenet' to download.")],
    root: Annotated[
        Path | None, typer.Option(help="The directory that holds the data sets' directories; your photos for 'folder'.")
    ] = None,
    backbone: Annotated[
        list[str] | None,
        typer.Option(
            help="A fine-tuned backbone instead of a pre-training: FILE, METHOD=FILE, METHOD:DATASET=FILE or, of a "
            "data set that is judged in folds, METHOD:DATASET:foldN=FILE. A FILE may be dense or street."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each agent; 1, or the paper's 6 for `seeds`.")] = (
        None
    ),
    dataset: Annotated[
        str, typer.Option(help=f"Where to make a table that the paper has of A alone: one of {', '.join(WHERE)}.")
    ] = "shanghaitech_a",
    preset: Annotated[
        PresetName,
        typer.Option(help="How LibraNet is trained: 'default', or the paper's own settings, for a hundred epochs."),
    ] = PresetName.default,
    budget: Annotated[BudgetName, typer.Option(help="'small': a few epochs; 'full': the recipes' own.")] = (
        BudgetName.full
    ),
    precision: Annotated[
        PrecisionName | None,
        typer.Option(help="In what backbones learn and look; 'bf16' is faster on a CPU that can do it."),
    ] = None,
    matmul: Annotated[
        MatmulName | None, typer.Option(help="How exact products of matrices are where agents learn, as in train.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at a time on this machine; 1 if not given.")
    ] = None,
    ray: Annotated[str | None, typer.Option(help="Run on this Ray cluster: its address, 'auto' or 'local'.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
) -> None:
    """Build what a table of the paper needs, reuse what is there, and write the table beside the paper's figures."""
    from experiments.reproduce.executors import LocalExecutor
    from experiments.reproduce.planner import Request
    from experiments.reproduce.reproduction import Reproduction
    from experiments.reproduce.tables import ON_ONE_DATASET
    from experiments.runs.directory import command_line

    if root is None and table is not TableName.speed:
        raise LibraError(f"`libra reproduce {table.value}` needs --root, the directory that holds the data sets.")
    if root is not None and not root.is_dir():
        raise LibraError(f"There is no directory {str(root)!r}; --root is the one that holds the data sets.")
    if table is TableName.speed:
        refuse_idle(context, "is not for the table speed, which measures time", *_OF_FIGURES)
    if dataset not in WHERE:
        raise LibraError(f"--dataset {dataset!r} is not a data set of photos; those are {', '.join(WHERE)}.")
    if table.value not in ON_ONE_DATASET:
        refuse_idle(context, f"is not for the table {table.value}, which has data sets of its own", "dataset")
    if weights in RELEASED:
        raise LibraError(
            f"--weights is the ImageNet backbone that the paper starts from; give {weights} as --backbone."
        )
    if jobs is not None and ray is not None:
        raise LibraError("--jobs is for this machine; with --ray the cluster decides how many jobs run at a time.")
    request = Request(
        root=(root or Path()).resolve(),
        out=out.resolve(),
        weights=weights,
        backbones=parse_backbones(backbone or ()),
        budget=budget.value,
        seeds=seeds,
        precision=None if precision is None else precision.value,
        matmul=None if matmul is None else matmul.value,
        dataset=dataset,
        preset=preset.value,
    )
    console = Console()
    plan = Reproduction.plan(table.value, request)
    if dry_run:
        plan.show(console, jobs or 1)
        return
    _make(request.out)
    executor = _ray(ray) if ray is not None and plan.todo else LocalExecutor(jobs or 1)
    plan.show(console, executor.width)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite end is an end like Ctrl-C
    executed = plan.run(executor, console)
    report = plan.report(executed, shlex.join(command_line()))
    _print(console, report)
    for path in report.write(request.out):
        console.print(str(path), soft_wrap=True, markup=False, highlight=False)
    if executed.interrupted:
        console.print("stopped; the same command goes on from here", highlight=False)
        raise typer.Exit(130)
    if executed.failed:
        console.print(
            f"some jobs failed; their logs are in {plan.cache}", soft_wrap=True, highlight=False, markup=False
        )
        raise typer.Exit(1)


def parse_backbones(texts: Iterable[str]) -> dict[str, Path]:
    """What stands before `=` (`METHOD`, `METHOD:DATASET`, `METHOD:DATASET:foldN`) → file; a bare file is for BCNet."""
    from experiments.reproduce.planner import FOLDS
    from libra_gym.backbones import check_weights

    datasets = {f"{method}:{name}" for method in METHODS for name in DATASETS}
    folds = {f"{m}:{name}:fold{k}" for m in METHODS for name, number in FOLDS.items() for k in range(1, number + 1)}
    found = {}
    for text in texts:
        role, equals, file = text.rpartition("=")
        role = role if equals else "bcnet"
        if role not in {*METHODS, *datasets, *folds}:
            raise LibraError(
                f"--backbone {text!r} names no pre-training; write FILE, METHOD=FILE, METHOD:DATASET=FILE or "
                f"METHOD:DATASET:foldN=FILE with the methods {', '.join(METHODS)}, the data sets {', '.join(DATASETS)} "
                f"and the folds of {', '.join(f'{name} (1 to {number})' for name, number in FOLDS.items())}."
            )
        if file not in RELEASED and not Path(file).is_file():
            raise LibraError(
                f"There is no file {file!r} with a backbone's weights; give one, or one of: {', '.join(RELEASED)}."
            )
        found[role] = find_model(file).resolve()
        check_weights("vgg16", found[role])  # a file that is no weights is a mistake to be told of now
    return found


def _make(out: Path) -> None:
    """The output directory, before hours of work go into it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LibraError(f"{out} cannot be made ({error.strerror}); give a writable --out.") from None


def _ray(address: str) -> Executor:
    from experiments.reproduce.executors import RayExecutor

    return RayExecutor(address)


def _print(console: Console, report: Report) -> None:
    """The table with a row for each figure, which fits a terminal."""
    table = Table("", "where", "figure", title=report.table.title)
    for column in ("paper", "ours", "Δ"):
        table.add_column(column, justify="right")
    table.add_column("judged on")
    for line in report.lines:
        for cell in line.cells:
            table.add_row(line.row, line.where, cell.metric, *cell.shown, line.judged or line.reason)
    console.print(table)
    for note in report.notes:
        console.print(f"- {note}", soft_wrap=True, markup=False, highlight=False)
