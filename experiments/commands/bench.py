"""`libra bench`: every benchmark of the project as one table and one JSON file."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from experiments.benchmarks import BenchOptions
from experiments.commands.sources import check_place
from libra_gym.errors import LibraError
from libra_gym.features.storage import write_whole

SUBJECTS = ("envs", "counts", "features", "pretraining", "training", "count")


def bench(
    out: Annotated[Path, typer.Option(help="Where to write the figures.")] = Path("bench.json"),
    only: Annotated[list[str] | None, typer.Option(help=f"Subjects: {', '.join(SUBJECTS)}. Default: all.")] = None,
    root: Annotated[Path | None, typer.Option(help="The ShanghaiTech directory, for figures on real photos.")] = None,
    weights: Annotated[Path | None, typer.Option(help="VGG16 weights, for figures on the real backbone.")] = None,
) -> None:
    """Measure, print a table, and write one flat JSON dict of name → number."""
    unknown = set(only or ()) - set(SUBJECTS)
    if unknown:
        raise LibraError(f"There is no benchmark {sorted(unknown)[0]!r}; the subjects are: {', '.join(SUBJECTS)}.")
    check_place(out)
    console = Console()
    figures: dict[str, float] = {}
    for subject in only or SUBJECTS:
        with console.status(f"measuring {subject}"):
            figures |= import_module(f"experiments.benchmarks.{subject}").run(BenchOptions(root, weights))
        write_whole(out, (json.dumps(figures, indent=2) + "\n").encode())
    table = Table("figure", title="benchmarks")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.4g}" if value < 1000 else f"{value:,.0f}")
    console.print(table)
    console.print(f"written to {out}")
