"""The `libra` command. Only the module of the command that is asked for is imported, so that help comes at once."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from libra_gym import __version__
from libra_gym.errors import LibraError, is_full

COMMANDS = {
    "data": "Check a data set on disk, and compare kernels.",
    "features": "Make a feature cache, or go on with one that was begun; `verify` checks one.",
    "pretrain": "Fine-tune a backbone, or a whole model on your photos (--method weighing).",
    "train": "Train an agent or a one-step head on a feature bank.",
    "evaluate": "Count a bank or a data set with a trained model.",
    "compare": "Put runs side by side: one table and one plot.",
    "reproduce": "Make one of the paper's tables, with the paper's figures beside ours.",
    "count": "Count the people in photos and videos.",
    "release": "Join a run and its backbone to one model file for `libra count`.",
    "show": "Draw how a photo is weighed, step by step.",
    "gallery": "Draw the best, median and worst counts, and why counts fail.",
    "figures": "Draw actions, intervals, Q values and counts of a whole bank.",
    "bench": "Measure speed and memory.",
    "demo": "Train LibraNet on drawn crowds and count some.",
}
"""Each command, `experiments.commands.NAME`, and what it is for."""


@cache
def load_command(name: str) -> Any:
    """A command with all its options: the `app` of its module, or the function of its name."""
    module = import_module(f"experiments.commands.{name}")
    part = getattr(module, "app", None)
    if part is None:
        part = typer.Typer(add_completion=False)
        part.command(name)(getattr(module, name))
    command = typer.main.get_command(part)
    command.name = name
    return command


class Commands(TyperGroup):
    """The commands of the table, each imported when it is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=purpose) for name, purpose in COMMANDS.items()}
        self._listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command itself, or its line of the table while help is printed."""
        if self._listing or cmd_name not in COMMANDS:
            return self.commands.get(cmd_name)
        return load_command(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the table, for which nothing needs to be imported."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"libra-gym {__version__}")
        raise typer.Exit


@app.callback()
def libra(
    _version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Crowd counting as weighing: data, features, training, counting."""


def main() -> None:
    """Run the command; a user's mistake is one sentence on standard error and exit status 2."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)  # a letter of a name that no font has
    for stream in (sys.stdout, sys.stderr):  # names of files need not be text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except LibraError as error:
        print(f"libra: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if not is_full(error):
            raise
        where = "what is printed" if error.filename is None else repr(error.filename)
        print(f"libra: {where} cannot be written ({error.strerror}); make room and try again.", file=sys.stderr)
        os._exit(2)  # else Python would try to write what is left once more, and fail again


if __name__ == "__main__":
    main()
