"""Short runs of `libra train`, and what they left behind."""

import csv

import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from experiments.cli import app

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
