"""RL Zoo by its own command line, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from agents import LibraDQN, WeighingVecEnv
from agents import zoo as our_zoo
from agents.registry import ALGORITHMS
from libra_gym import LibraError

pytest.importorskip("rl_zoo3")

ROOT = Path(__file__).resolve().parents[2]


def zoo(command, folder, *arguments, module="rl_zoo3.", algo="dqn"):
    """Run one of RL Zoo's commands where it can reach neither the network nor the home directory."""
    environment = os.environ | {
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "MPLCONFIGDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "WANDB_MODE": "disabled",
    }
    line = [sys.executable, "-m", *f"{module}{command}".split(), "--algo", algo, "--env", "LibraWeighing-v0"]
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


@pytest.mark.slow
def test_libra_dqn_trains_on_the_native_batch(tmp_path, monkeypatch, capsys):
    small = ("-params", "n_envs:32", "learning_starts:100", "policy_kwargs:dict(network=dict(hidden=[16]))")
    judged = ("--eval-freq", "64", "--eval-episodes", "10", "--eval-env-kwargs", "split:'test'")
    zoo("train", tmp_path, "-n", "800", *small, *judged, module="agents.zoo ", algo="libra_dqn")
    run = tmp_path / "logs/libra_dqn/LibraWeighing-v0_1"
    model = LibraDQN.load(run / "LibraWeighing-v0.zip", device="cpu")
    assert model.num_timesteps >= 800
    assert model.q_net.q_net.settings.hidden == (16,)  # the scale's own network, which the native batch brings
    assert (run / "best_model.zip").is_file()

    from rl_zoo3.exp_manager import ExperimentManager

    monkeypatch.setattr(ExperimentManager, "default_vec_env_cls", None)
    monkeypatch.setattr(sys, "argv", ["zoo"])
    where = ("--algo", "libra_dqn", "--env", "LibraWeighing-v0", "-f", str(tmp_path / "logs"))
    our_zoo.main(["enjoy", *where, "-n", "50", "--no-render", "--device", "cpu"])
    assert "Mean reward" in capsys.readouterr().out


def test_our_algorithms_are_offered_beside_rl_zoos_own():
    from rl_zoo3.utils import ALGOS

    our_zoo.register()
    assert ALGOS["libra_dqn"] is LibraDQN
    assert ALGOS["dqn"] is DQN
    assert {"bc", "dagger", "double_dqn", "dueling_dqn", "maskable_ppo"} <= ALGOS.keys()
    assert not any("head" in name for name in ALGOS)


@pytest.mark.parametrize("name", [name for name, line in ALGORITHMS.items() if line.kind != "head"])
def test_a_recipe_is_translated_whole(name):
    algorithm = ALGORITHMS[name]
    ours, theirs = algorithm.presets()["default"], our_zoo.recipe(algorithm)
    assert theirs["n_envs"] == ours["num_envs"]
    assert theirs["n_timesteps"] > max(10_000, ours.get("weighings", 0))
    assert theirs["env_kwargs"].items() >= ours.get("env", {}).items()
    if "final_learning_rate" in ours:
        assert theirs["learning_rate"] == "lin_0.0005"
    else:
        assert theirs["learning_rate"] == ours["learning_rate"]
    translated = {"epochs", "weighings", "num_envs", "env", "final_learning_rate", "learning_rate", "policy_kwargs"}
    rest = ours.keys() - translated
    assert {key: theirs[key] for key in rest} == {key: ours[key] for key in rest}


def test_an_agent_is_judged_by_the_rewards_that_it_learns(monkeypatch):
    from rl_zoo3 import train as zoos_train

    given = []
    monkeypatch.setattr(zoos_train, "train", lambda: given.append(sys.argv))
    where = ["train", "--algo", "libra_dqn", "--env", "LibraWeighing-v0", "--eval-env-kwargs", "split:'test'"]
    monkeypatch.setattr(sys, "argv", ["zoo"])
    our_zoo.main(where)
    assert "rewards:{'shape': 'error'}" in given[0]
    monkeypatch.setattr(sys, "argv", ["zoo"])
    our_zoo.main([*where, "rewards:dict()"])
    assert "rewards:{'shape': 'error'}" not in given[1]
    monkeypatch.setattr(sys, "argv", ["zoo"])
    our_zoo.main([*where, "--env-kwargs", "split:'train'"])  # which leaves the paper's rewards to both
    assert not [text for text in given[2] if text.startswith("rewards:")]
    monkeypatch.setattr(sys, "argv", ["zoo"])
    our_zoo.main([*where, "--env-kwargs", "rewards:dict(guide=2)"])
    assert given[3].count("rewards:dict(guide=2)") == 2
    monkeypatch.setattr(sys, "argv", ["zoo"])
    our_zoo.main([*where[:-2], "--eval-env-kwargs=split:'test'"])
    assert given[4][given[4].index("--eval-env-kwargs") :][1:3] == ["split:'test'", "rewards:{'shape': 'error'}"]


def test_as_many_processes_as_there_are_cores_for(monkeypatch):
    from rl_zoo3 import train as zoos_train

    monkeypatch.setattr(zoos_train, "train", lambda: None)
    monkeypatch.setattr(sys, "argv", ["zoo"])
    our_zoo.main(["train", "--algo", "ppo", "--env", "LibraWeighing-v0", "--vec-env", "subproc"])
    assert our_zoo.hyperparams["LibraWeighing-v0"]["n_envs"] <= 2 * (os.cpu_count() or 1)


def test_what_rl_zoo_cannot_optimise_is_said():
    with pytest.raises(LibraError, match="cannot optimise the settings of 'libra_dqn'"):
        our_zoo.main(["train", "--algo", "libra_dqn", "--env", "LibraWeighing-v0", "-optimize"])


def test_only_our_scales_become_a_native_batch():
    batch = our_zoo.scales([lambda: gym.make("LibraWeighing-v0", split="test", order="sequential")] * 3)
    assert isinstance(batch, WeighingVecEnv)
    assert batch.num_envs == 3
    assert {image.split for image in batch.bank.images} == {"test"}
    assert isinstance(our_zoo.scales([lambda: gym.make("CartPole-v1")] * 2), DummyVecEnv)


def test_wrappers_are_not_dropped_in_silence():
    watched = Monitor(gym.make("LibraWeighing-v0"))
    assert isinstance(our_zoo.scales([lambda: watched] * 2), WeighingVecEnv)
    for make in (
        lambda: gym.wrappers.TransformReward(gym.make("LibraWeighing-v0"), abs),
        lambda: gym.make("LibraWeighing-v0", max_episode_steps=2),
    ):
        with pytest.raises(LibraError, match=r"is wrapped in a (TransformReward|PatchedTimeLimit)"):
            our_zoo.scales([make] * 2)


def test_an_unknown_command_is_named():
    with pytest.raises(LibraError, match="no command 'fly'"):
        our_zoo.main(["fly"])
