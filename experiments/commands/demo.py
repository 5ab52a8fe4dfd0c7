"""`libra demo`: train LibraNet on the embedded scenes, count unseen ones, and show how."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from experiments.runs import RunDirectory, plan, train
from experiments.runs.pictures import draw
from libra_gym.banks import load_bank
from libra_gym.datasets.synthetic import redraw
from libra_gym.evaluation import Evaluation
from libra_gym.weigher import Weigher

COMMAND = "libra demo"
ROWS = 16
"""How many images the table of counts shows."""


def demo(
    out: Annotated[Path, typer.Option(help="Where pictures and the trained model go.")] = Path("demo-out"),
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the training.")] = 0,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of the training; the recipe's if not given.")
    ] = None,
) -> None:
    """Train LibraNet on the synthetic crowds that ship with the package, count unseen ones, and draw a weighing."""
    console = Console()
    console.print("[bold]1. Training[/bold] LibraNet on synthetic scenes with real VGG16 features")
    run = RunDirectory(out / "run")
    config = plan("demo", preset="demo", seed=seed, epochs=epochs)
    command = run.path / "command.txt"
    if command.is_file() and command.read_text(encoding="utf-8", errors="replace").startswith(COMMAND):
        with run.held():  # unless it is still at work
            pass
        shutil.rmtree(run.path)  # that of the demo before
    run.check_free()
    with run.held():
        run.begin(config, COMMAND.split())
        trained = train(run, config, console)
    if not trained.finished:
        console.print("stopped; the same command begins anew")
        raise typer.Exit(130)

    console.print("\n[bold]2. Counting[/bold] the test scenes")
    weigher = Weigher.load(run.model_path("best"))
    bank = load_bank("demo", "test").with_quantizer(weigher.quantizer or load_bank("demo").quantizer)
    result = replace(weigher.evaluate(bank), bank="demo test")
    console.print(_counts(result))
    console.print(result.table())

    console.print("\n[bold]3. Pictures[/bold]")
    photo = redraw(bank.images[int(bank.people.argmax())].name).image
    for name, figure in draw(weigher, bank, weigher.task, photo).items():
        path = out / f"{name}.png"
        figure.savefig(path, dpi=110)
        console.print(f"   {path}", soft_wrap=True, markup=False)
    console.print(
        f"\nThe model is {run.model_path('best')}; it has only seen drawn crowds, so do not ask it about real ones."
    )


def _counts(result: Evaluation) -> Table:
    table = Table("scene", title="people in each scene")
    for column in ("there are", "counted", "error"):
        table.add_column(column, justify="right")
    for record in result.records[:ROWS]:
        error = round(record.count - record.people)
        table.add_row(record.name, f"{record.people:.0f}", f"{record.count:.0f}", f"{error:+d}" if error else "0")
    return table
