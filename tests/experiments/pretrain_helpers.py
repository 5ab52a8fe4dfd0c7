"""The `libra` command and its runs, for the tests of pre-training."""

import csv

import cv2
import numpy as np
from typer.testing import CliRunner

from experiments.cli import app
from libra_gym.errors import LibraError
from libra_gym.features import open_features


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


def draw_split_crowds(root):
    """Six small photos to learn from and five to judge by, with dots that can be seen in them."""
    rng = np.random.default_rng(0)
    for split, number in (("train", 6), ("validation", 5)):
        (root / split).mkdir()
        for k in range(number):
            dots = rng.uniform(0, [90, 70], (5 * k, 2))
            image = rng.integers(150, 256, (70, 90, 3), np.uint8)
            for x, y in dots:
                cv2.circle(image, (int(x), int(y)), 3, (20, 20, 20), -1)
            cv2.imwrite(str(root / split / f"{k}.png"), image)
            np.savetxt(root / split / f"{k}.csv", dots, delimiter=",", fmt="%.2f")
    return root


def make_model(data, home, scale):
    """A model made in the usual way: pre-training, features, agent, release; what each step made is beside it."""
    backbone = ("--backbone", "mobilenet_v3_large")
    libra(
        "pretrain", *data, *backbone, "--weights", "random", "--train-from", "features.16", "--epochs", "1",
        "--set", "crop=64", "--set", f"scale={scale}", "--device", "cpu", "--out", home / "backbone",
    )  # fmt: skip
    weights = home / "backbone" / "last.safetensors"
    libra("features", *data, *backbone, "--weights", weights, "--workers", "0", "--out", home / "bank")
    assert open_features(home / "bank").meta["scale"] == scale  # as the weights learnt
    libra(
        "train", "--bank", home / "bank", "--preset", "sparse", "--epochs", "1", "--set", "learning_starts=10",
        "--set", "update_every=10", "--device", "cpu", "--out", home / "agent",
    )  # fmt: skip
    libra("release", home / "agent", "--weights", weights, "--dtype", "float32", "--out", home / "model.safetensors")
    return home / "model.safetensors"
