"""Stable-Baselines3's algorithms, evaluation and callbacks, unchanged."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from banks import make_bank
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from agents import make_vec_env

pytestmark = pytest.mark.filterwarnings("error")

ALGORITHMS = {
    DQN: {"buffer_size": 2000, "learning_starts": 64, "train_freq": 2, "batch_size": 32},
    PPO: {"n_steps": 16, "batch_size": 16, "n_epochs": 2},
    A2C: {"n_steps": 8},
}
LOSSES = {DQN: ["train/loss"], PPO: ["train/value_loss", "train/entropy_loss"], A2C: ["train/value_loss"]}


def build(algorithm, env, **settings):
    return algorithm("MlpPolicy", env, seed=0, device="cpu", **(ALGORITHMS[algorithm] | settings))


def weights(model):
    return torch.nn.utils.parameters_to_vector(model.policy.parameters()).detach().clone()


@pytest.mark.parametrize("env_id", ["LibraWeighing-v0", "LibraWeighingContinuous-v0"])
@pytest.mark.parametrize("batched", [True, False], ids=["batch", "single"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.__name__)
def test_an_algorithm_learns_and_is_evaluated(algorithm, batched, env_id):
    env = make_vec_env(env_id, num_envs=8, seed=0) if batched else gym.make(env_id)
    model = build(algorithm, env)
    before = weights(model)
    model.learn(512)
    assert model.num_timesteps == 512
    assert torch.isfinite(weights(model)).all()
    assert not torch.equal(weights(model), before)
    assert all(np.isfinite(model.logger.name_to_value[loss]) for loss in LOSSES[algorithm])
    assert len(model.ep_info_buffer) > 10
    assert all(1 <= episode["l"] <= 8 and abs(episode["r"]) <= 8 * 5 for episode in model.ep_info_buffer)

    judge = (
        make_vec_env(env_id, num_envs=4, split="test", seed=1) if batched else Monitor(gym.make(env_id, split="test"))
    )
    returns, lengths = evaluate_policy(model, judge, n_eval_episodes=20, return_episode_rewards=True)
    assert len(returns) >= 20
    assert all(1 <= length <= 8 for length in lengths)


def test_callbacks_evaluate_and_save(tmp_path):
    evaluate = EvalCallback(
        make_vec_env(num_envs=4, split="test", seed=1),
        n_eval_episodes=8,
        eval_freq=16,
        log_path=str(tmp_path),
        best_model_save_path=str(tmp_path),
        verbose=0,
    )
    checkpoint = CheckpointCallback(save_freq=32, save_path=str(tmp_path), save_replay_buffer=True)
    build(DQN, make_vec_env(num_envs=8, seed=0)).learn(512, callback=[evaluate, checkpoint])
    with np.load(tmp_path / "evaluations.npz") as log:
        assert log["timesteps"].tolist() == [128, 256, 384, 512]
        assert log["results"].shape == (4, 8)
    assert DQN.load(tmp_path / "best_model").num_timesteps > 0
    assert {p.name for p in tmp_path.glob("rl_model*.zip")} == {"rl_model_256_steps.zip", "rl_model_512_steps.zip"}
    resumed = DQN.load(tmp_path / "rl_model_256_steps", env=make_vec_env(num_envs=8))
    resumed.load_replay_buffer(tmp_path / "rl_model_replay_buffer_256_steps.pkl")
    assert resumed.replay_buffer.size() > 0
    assert resumed.learn(128, reset_num_timesteps=False).num_timesteps == 256 + 128


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.__name__)
def test_a_saved_model_goes_on_with_another_split_or_bank(algorithm, tmp_path):
    """All banks of one backbone share their spaces, however many people are in their patches."""
    other = tmp_path / "other.safetensors"
    make_bank(channels=512, seed=5).save(other)
    model = build(algorithm, make_vec_env(num_envs=8, split="train", seed=0))
    model.learn(256)
    model.save(tmp_path / "model")

    for settings in ({"split": "test"}, {"bank": str(other), "split": None}):
        envs = make_vec_env(num_envs=8, seed=0, **settings)
        loaded = algorithm.load(tmp_path / "model", device="cpu")
        observations = envs.reset()
        before, (chosen, _) = weights(loaded), loaded.predict(observations, deterministic=True)
        np.testing.assert_array_equal(chosen, model.predict(observations, deterministic=True)[0])
        loaded.set_env(envs)
        loaded.learn(256, reset_num_timesteps=False)
        assert loaded.num_timesteps == 512
        assert not torch.equal(weights(loaded), before)


def test_a_run_can_be_repeated():
    first, second = (weights(build(PPO, make_vec_env(num_envs=8)).learn(256)) for _ in range(2))
    assert torch.equal(first, second)


def test_vec_env_wrappers_stack_on_it():
    """`VecMonitor` is not among them: its work is done already, and it says so."""
    envs = VecNormalize(make_vec_env(num_envs=8, seed=0), norm_obs=False)
    assert build(A2C, envs).learn(256).num_timesteps == 256
    assert envs.ret_rms.var > 0


def test_infos_of_weighings_that_ended_are_as_the_environments_own():
    with pytest.warns(UserWarning, match="already wrapped"):  # that its own record of episodes is replaced
        envs = VecMonitor(make_vec_env(num_envs=4, seed=0), info_keywords=("value", "privileged_truth"))
    envs.reset()
    _, _, ended, infos = envs.step(np.array([8, 7, 8, 7]))
    assert ended.tolist() == [True, False, True, False]
    assert [info["value"] for info in infos if info] == [0.0, 0.0]
    assert set(infos[0]["episode"]) >= {"r", "l", "t", "value", "privileged_truth"}
    assert envs.venv.metadata["render_fps"] == 2  # where SB3 looks for it
    assert "SameStep" in envs.get_attr("spec")[0].to_json()
