"""`libra compare`: runs side by side, as one table and one plot (docs/training.md)."""

from __future__ import annotations

import json as json_format
from io import BytesIO
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from libra_gym.errors import LibraError
from libra_gym.features.storage import write_whole

PLOT = "compare.png"
WIDTH = 180
"""Columns of the table where it goes to a file or a pipe."""


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Directories of runs of `libra train`.")],
    out: Annotated[Path, typer.Option(help=f"The directory that {PLOT} goes to.")] = Path(),
    json: Annotated[Path | None, typer.Option(help="Write all figures and curves to this file.")] = None,
) -> None:
    """Compare runs: validation errors, steps, transitions and time, with means over seeds; and their curves."""
    from experiments.compare import comparison_figure, fitting_table, group_runs, notes, read_run, to_json

    records, errors = [], []
    for path in {run.resolve(): run for run in runs}.values():
        try:
            records.append(read_run(path))
        except LibraError as error:
            errors.append(str(error))
    if not records:
        raise LibraError(" ".join(errors))
    groups = group_runs(records)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    table, without = fitting_table(groups, console)
    console.print(table)
    if without:
        left_out = f"left out for want of room: {', '.join(without)}; a wider terminal, a pipe or --json has them"
        console.print(left_out, highlight=False, markup=False)
    for note in notes(groups):
        console.print(note, soft_wrap=True, highlight=False, markup=False)
    _make_directory(out)
    picture = BytesIO()
    comparison_figure(groups).savefig(picture, format="png", dpi=150)
    write_whole(out / PLOT, picture.getvalue())
    console.print(f"curves in {out / PLOT}", soft_wrap=True, highlight=False, markup=False)
    if json is not None:
        write_whole(json, (json_format.dumps(to_json(groups, errors), indent=2) + "\n").encode())
    for message in errors:
        typer.echo(f"libra: {message}", err=True)
    if errors:
        raise typer.Exit(2)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LibraError(f"{str(path)!r} cannot be made ({error.strerror}); give another --out.") from None
