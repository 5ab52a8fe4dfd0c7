"""`libra pretrain` by several processes: they share crops and photos, and stop and go on together."""

import os
import subprocess
import sys

import pytest
import torch
from pretrain_helpers import draw_crowds, libra, pretraining_of, rows

from libra_gym.backbones import read_weights

pytestmark = pytest.mark.slow

EPOCHS = 2
INTERRUPTED = """
import os, signal
from agents.pretraining import Pretrainer
from experiments.cli import main

learn, calls = Pretrainer._learn, []

def interrupted(trainer, *batch):
    calls.append(trainer)
    if len(calls) == 4 and os.environ["RANK"] == "1":  # the first of three batches of the second epoch
        signal.raise_signal(signal.SIGINT)
    return learn(trainer, *batch)

Pretrainer._learn = interrupted
main()
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return draw_crowds(tmp_path_factory.mktemp("crowd"), 25)


def launch(*arguments, status=0):
    """What two processes print to standard output."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout


def test_two_processes_share_epochs_and_stop_and_go_on_together(root, tmp_path):
    """Of 22 photos in batches of 4, each process takes three batches instead of six."""
    whole, stopped, alone = (tmp_path / name for name in ("whole", "stopped", "alone"))
    launch("-m", "experiments.cli", *pretraining_of(root, whole, "--epochs", EPOCHS))
    assert [row["train/updates"] for row in rows(whole)] == ["0", "3", "6"]
    assert (whole / "best.safetensors").exists()

    libra(*pretraining_of(root, alone, "--epochs", "1"))
    assert [row["train/updates"] for row in rows(alone)] == ["0", "6"]
    judged = [{key: value for key, value in rows(run)[0].items() if "validation" in key} for run in (whole, alone)]
    assert {key: pytest.approx(float(value)) for key, value in judged[1].items()} == {
        key: float(value) for key, value in judged[0].items()
    }

    program = tmp_path / "interrupted.py"
    program.write_text(INTERRUPTED)
    said = launch(program, *pretraining_of(root, stopped, "--epochs", EPOCHS), status=1)
    assert f"stopped after 1 of {EPOCHS} epochs; go on, by 2 processes as before, with:" in said
    sentence = libra("pretrain", "--resume", stopped, status=2)
    assert "within an epoch that 2 process(es) had begun to share; 1 cannot finish it" in sentence
    launch("-m", "experiments.cli", "pretrain", "--resume", stopped)
    ours, theirs = (read_weights(run / "last.safetensors") for run in (stopped, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert rows(stopped) == rows(whole)
