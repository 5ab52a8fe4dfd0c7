"""A stock algorithm learns to weigh photos that it has not seen, within a minute and without a tuned network."""

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import PPO

import libra_gym
from agents import make_vec_env


def weigh(policy):
    """Mean return and mean absolute interval error of a policy over every test patch of the demo bank, once each."""
    patches = len(libra_gym.load_bank("demo", "test"))
    envs = gym.make_vec(
        "LibraWeighing-v0", num_envs=patches, split="test", order="sequential", autoreset_mode="SameStep"
    )
    observations, _ = envs.reset(seed=0)
    returns, errors, live = np.zeros(patches), np.full(patches, np.nan), np.ones(patches, dtype=bool)
    while live.any():
        observations, rewards, ended, _, infos = envs.step(policy(observations))
        returns[live] += rewards[live]
        now = live & ended
        if now.any():
            last = infos["final_info"]
            errors[now] = np.abs(last["value"] - last["privileged_truth"])[now]
        live &= ~ended
    return returns.mean(), errors.mean()


@pytest.mark.slow
def test_ppo_beats_chance_and_a_guess_that_ignores_the_photo():
    rng = np.random.default_rng(0)
    chance_return, chance_error = weigh(lambda observations: rng.integers(9, size=len(observations)))
    train, test = (libra_gym.load_bank("demo", split).intervals.double() for split in ("train", "test"))
    blind_error = float((test - train.median()).abs().mean())

    model = PPO(
        "MlpPolicy",
        make_vec_env(num_envs=256, seed=0),
        n_steps=8,
        batch_size=512,
        n_epochs=4,
        learning_rate=1e-3,
        gamma=0.9,
        seed=0,
        device="cpu",
    ).learn(60_000)
    learnt_return, learnt_error = weigh(lambda observations: model.predict(observations, deterministic=True)[0])

    assert learnt_return > chance_return + 5
    assert learnt_error < 0.6 * chance_error
    assert learnt_error < 0.7 * blind_error
