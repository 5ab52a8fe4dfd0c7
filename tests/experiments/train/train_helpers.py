"""Short runs of `libra train`, and what they left behind."""

import csv

import cv2
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from experiments.cli import app
from libra_gym.backbones import load_backbone

BACKBONE = "mobilenet_v3_large"

SMALL = {
    "num_envs": 16,
    "learning_starts": 50,
    "batch_size": 16,
    "update_every": 20,
    "policy_kwargs.network.hidden": "[16]",
    "policy_kwargs.network.dropout": 0.1,  # draws from torch's global generator
}


def settings(changes):
    return [text for key, value in changes.items() for text in ("--set", f"{key}={value}")]


def begin(bank, run, *arguments, epochs=3, changes=SMALL):
    return ["train", "--bank", str(bank), "--out", str(run), "--epochs", str(epochs), *settings(changes), *arguments]


def libra(*arguments, status=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.output


def progress(run):
    with (run / "progress.csv").open() as file:
        return list(csv.DictReader(file))


def same_weights(a, b):
    left, right = load_file(a), load_file(b)
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def write_photos(folder):
    """A data set `folder` of four photos of noise, one to be judged on, with thirty people each."""
    rng = np.random.default_rng(0)
    for name in ("train/a", "train/b", "validation/c", "test/d"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{name}.png"), rng.integers(0, 256, (96, 128, 3), np.uint8))
        dots = rng.uniform((0, 0), (128, 96), (30, 2))
        (folder / f"{name}.csv").write_text("".join(f"{x:.2f},{y:.2f}\n" for x, y in dots))
    return folder


def write_backbone(path):
    """A small backbone with random weights, and the file that holds them."""
    backbone = load_backbone(BACKBONE, "random")
    save_file({key: value.contiguous() for key, value in backbone.state_dict().items()}, path)
    return backbone
