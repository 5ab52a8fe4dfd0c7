"""The `libra` command and its runs, for the tests of pre-training."""

import csv

from typer.testing import CliRunner

from experiments.cli import app
from libra_gym.errors import LibraError


def libra(*arguments, status: int = 0) -> str:
    """What a command prints, or the sentence of the error that it ends with (status 2)."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, LibraError):
        assert status == 2, result.exception
        return str(result.exception)
    assert result.exit_code == status, result.output
    return result.output


def rows(run):
    """The epochs of a run."""
    with (run / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))
