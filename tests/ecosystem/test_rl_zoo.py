"""RL Zoo by its own command line, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3 import DQN

pytest.importorskip("rl_zoo3")

ROOT = Path(__file__).resolve().parents[2]


def zoo(command, folder, *arguments):
    """Run one of RL Zoo's commands where it can reach neither the network nor the home directory."""
    environment = os.environ | {
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "MPLCONFIGDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "WANDB_MODE": "disabled",
    }
    line = [sys.executable, "-m", f"rl_zoo3.{command}", "--algo", "dqn", "--env", "LibraWeighing-v0"]
    line += ["--gym-packages", "libra_gym", "-f", "logs", "--seed", "1", "--device", "cpu", *arguments]
    finished = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.mark.slow
def test_train_and_enjoy(tmp_path):
    """With RL Zoo's own default hyper-parameters; only the buffer is smaller."""
    small = ("-params", "buffer_size:5000", "target_update_interval:200")
    judged = ("--eval-freq", "400", "--eval-episodes", "10", "--eval-env-kwargs", "split:'test'")
    zoo("train", tmp_path, "-n", "1200", *small, *judged)
    run = tmp_path / "logs/dqn/LibraWeighing-v0_1"
    assert DQN.load(run / "LibraWeighing-v0.zip").num_timesteps == 1200
    assert (run / "best_model.zip").is_file()
    with np.load(run / "evaluations.npz") as log:
        assert log["results"].shape == (3, 10)
    lengths = np.genfromtxt(run / "0.monitor.csv", delimiter=",", skip_header=1, names=True)["l"]
    assert set(lengths) <= set(range(1, 9))
    assert 1200 - 8 <= lengths.sum() <= 1200
    assert "Mean reward" in zoo("enjoy", tmp_path, "-n", "100", "--no-render")


@pytest.mark.slow
def test_train_with_a_recipe(tmp_path):
    (tmp_path / "dqn.yml").write_text(
        """
LibraWeighing-v0:
  n_timesteps: 800
  n_envs: 4
  policy: MlpPolicy
  env_kwargs: {split: train, order: shuffled}
  buffer_size: 5000
  learning_rate: lin_1e-3
  policy_kwargs: "dict(net_arch=[64])"
"""
    )
    zoo("train", tmp_path, "--conf-file", "dqn.yml", "--eval-freq", "-1")
    model = DQN.load(tmp_path / "logs/dqn/LibraWeighing-v0_1/LibraWeighing-v0.zip")
    assert (model.num_timesteps, model.n_envs, model.policy.net_arch) == (800, 4, [64])
