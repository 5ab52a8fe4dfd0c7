"""The `libra` command and its runs, for the tests of pre-training."""

import csv

import cv2
import numpy as np
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


def draw_crowds(root, number):
    """So many small photos of noise with dots; every tenth is for validation."""
    rng = np.random.default_rng(0)
    for name in range(number):
        dots = rng.uniform(0, [90, 70], (20, 2))
        cv2.imwrite(str(root / f"{name}.png"), rng.integers(0, 256, (70, 90, 3), np.uint8))
        np.savetxt(root / f"{name}.csv", dots, delimiter=",", fmt="%.2f")
    return root


def pretraining_of(root, out, *more):
    """The command of a small pre-training."""
    options = {"dataset": "folder", "root": root, "out": out, "backbone": "mobilenet_v3_large", "weights": "random"}
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    learning = ["--train-from", "features.15", "--set", "crop=64", "--device", "cpu"]
    return ["pretrain", *given, *learning, *map(str, more)]
