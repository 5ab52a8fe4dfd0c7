"""What options of several commands have in common."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

import typer
from rich.console import Console

from libra_gym.errors import LibraError


class MatmulName(StrEnum):
    """How exact PyTorch's products of matrices in single precision are."""

    highest = "highest"
    high = "high"
    medium = "medium"


def parse_source(text: str, option: str) -> tuple[str, str | None, Path]:
    """Name, split and directory; a split may hold colons of its own, as `train:1/5` does."""
    source, _, directory = text.partition("=")
    name, _, split = source.partition(":")
    if not name or not directory:
        raise LibraError(f"{option} {text!r} names no data set; write NAME=DIR or NAME:SPLIT=DIR.")
    return name, split or None, Path(directory).absolute()


def check_place(path: Path | None) -> None:
    """Refuse a file that could not be written, before there is anything to write."""
    if path is not None and path.is_dir():
        raise LibraError(f"{str(path)!r} is a directory; name a file.")
    if path is not None and not path.absolute().parent.is_dir():
        raise LibraError(f"{str(path)!r} cannot be written, since there is no directory {str(path.parent)!r}.")
    if path is not None and not os.access(path.absolute().parent, os.W_OK):
        raise LibraError(f"{str(path)!r} cannot be written, since its directory may not be; name another place.")


def given(context: typer.Context, *names: str) -> list[str]:
    """Those of these options that were typed, as they are typed."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [
        "--" + name.replace("_", "-") for name, source in sources.items() if source and source.name == "COMMANDLINE"
    ]


def refuse_idle(context: typer.Context, because: str, *names: str) -> None:
    """Refuse options that would do nothing; `because` goes on a sentence that names the first of them."""
    if idle := given(context, *names):
        raise LibraError(f"{idle[0]} {because}; leave it out.")


def warn_of_few(photos: int, console: Console) -> None:
    """Say before a training that `libra release` will need more validation photos for its interval."""
    from libra_gym.uncertainty import fewest

    if photos < fewest():
        console.print(
            f"The validation photos are {photos}: `libra release` needs at least {fewest()} for its interval. Of your "
            "own, put so many into a directory `validation` before you train.",
            highlight=False,
            soft_wrap=True,
        )
