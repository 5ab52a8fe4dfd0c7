"""sb3-contrib's algorithms, unchanged; with masks where they know of masks."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import QRDQN, TRPO, MaskablePPO
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnvWrapper

from agents import make_vec_env

pytestmark = pytest.mark.filterwarnings("error")

ALGORITHMS = {
    QRDQN: {
        "buffer_size": 2000,
        "learning_starts": 64,
        "batch_size": 32,
        "policy_kwargs": {"n_quantiles": 25},
    },
    TRPO: {"n_steps": 32, "batch_size": 32},
    MaskablePPO: {"n_steps": 16, "batch_size": 32, "n_epochs": 2},
}


class Recorder(VecEnvWrapper):
    """Counts the actions sent, and those that were illegal where they were sent."""

    sent = illegal = 0

    def reset(self):
        return self.venv.reset()

    def step_async(self, actions):
        masks = np.stack(self.venv.env_method("action_masks"))
        self.sent += len(actions)
        self.illegal += int((~masks[np.arange(len(actions)), actions]).sum())
        self.venv.step_async(actions)

    def step_wait(self):
        return self.venv.step_wait()


def learn(algorithm, env, **learning):
    model = algorithm("MlpPolicy", env, seed=0, device="cpu", **ALGORITHMS[algorithm])
    before = [p.detach().clone() for p in model.policy.parameters()]
    model.learn(512, **learning)
    assert model.num_timesteps == 512
    after = list(model.policy.parameters())
    assert all(torch.isfinite(p).all() for p in after)
    assert any(not torch.equal(a, b) for a, b in zip(after, before))
    return model


@pytest.mark.parametrize("batched", [True, False], ids=["batch", "single"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.__name__)
def test_an_algorithm_learns(algorithm, batched):
    learn(algorithm, make_vec_env(num_envs=8, seed=0) if batched else gym.make("LibraWeighing-v0"))


@pytest.mark.parametrize("env_id", ["LibraWeighing-v0", "LibraWeighingContinuous-v0"])
def test_a_masked_algorithm_never_sends_an_illegal_action(env_id):
    training, judging = (Recorder(make_vec_env(env_id, num_envs=8, seed=seed)) for seed in (0, 1))
    callback = MaskableEvalCallback(judging, n_eval_episodes=8, eval_freq=32, verbose=0)
    model = learn(MaskablePPO, training, callback=callback)
    evaluate_policy(model, judging, n_eval_episodes=16)
    assert training.sent == 512
    assert judging.sent > 24
    assert training.illegal == judging.illegal == 0


def test_an_algorithm_without_masks_does_send_them():
    """So that the zero above means something; nothing breaks either."""
    training = Recorder(make_vec_env(num_envs=8, seed=0))
    learn(TRPO, training)
    assert training.illegal > 50
