"""LibraDQN on real-valued counts: the same loop, with counts in place of intervals and no quantizer in sight."""

import numpy as np
import pytest
import torch
from banks import make_bank

from agents import make_vec_env
from agents.libra_dqn import LibraDQN
from libra_gym.errors import LibraError
from libra_gym.metrics import score
from libra_gym.weigher import Weigher

ENV = "LibraWeighingContinuous-v0"


def agent(bank, rewards=None, hidden=32, **kwargs):
    env = make_vec_env(ENV, num_envs=64, bank=bank, rewards=rewards)
    settings = {"learning_rate": 3e-3, "buffer_size": 20_000, "learning_starts": 100, "update_every": 20, "seed": 0}
    policy = {
        "network": {"hidden": [hidden, hidden], "q_scale": 1.0, "init_std": None},
        "optimizer_class": torch.optim.Adam,
    }
    return LibraDQN("ScalePolicy", env, policy_kwargs=policy, device="cpu", **(settings | kwargs))


@pytest.mark.parametrize("shape", ["paper", "error"])
@pytest.mark.parametrize("gamma", [0.0, 0.9])
def test_all_backups_are_the_tasks_own_rewards_and_next_values(shape, gamma):
    model = agent(make_bank(), {"shape": shape}, backup="all", gamma=gamma, easy_drop=0.0)
    learner, task = model.learner, model.learner.task
    learner.learn_block()
    batch = learner.replay.sample(30, learner.generator)
    features = learner.bank.gather(batch.patch)
    _, wanted, _ = learner._all_backups(batch, features)
    truth = (learner.bank.counts.double() / task.tick).numpy()[batch.patch]
    assert not np.array_equal(truth, truth.round())
    value, step = batch.value.numpy(), batch.step.numpy()
    rewards, legal = task.all_rewards(truth, value, step), task.legal(value)
    expected = []
    for row, action in zip(*legal.nonzero()):
        target = float(rewards[row, action])
        if not task.ends(action, step[row]):
            history = batch.history[row].clone()
            history[step[row]] = action + 1
            q = learner.target(features[row : row + 1], task.encode(history)[None])[0].detach().numpy()
            after = task.place(value[row], action)
            target += gamma * q[task.legal(after)].max()
        expected.append(target)
    np.testing.assert_allclose(wanted.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_share_of_weighings_in_balance_is_told_within_the_tolerance():
    bank = make_bank()
    strict, wide = agent(bank), agent(bank, {"balance_share": 1.0})
    for model in (strict, wide):
        model.learn_epochs(1)
    assert wide.learner.summary.exact > strict.learner.summary.exact


def test_a_short_training_counts_better_than_the_mean():
    bank = make_bank(images=40, rows=4, cols=4)
    train, validation = bank.split("train"), bank.split("validation+test")
    learning = {"backup": "all", "gamma": 0.0, "easy_drop": 0.0, "batch_size": 64, "update_every": 40}
    model = agent(train, {"shape": "error"}, epsilon_start=0.5, epsilon_step=0.2, normalise=True, **learning)
    model.learn_epochs(4)
    weigher = model.weigher()
    assert weigher.quantizer is None
    constant = np.full(len(validation), float(train.counts.mean()))
    patch_error = np.abs(weigher.weigh(validation).value * 0.01 - validation.counts.numpy()).mean()
    assert patch_error < 0.5 * np.abs(constant - validation.counts.numpy()).mean()
    assert weigher.evaluate(validation).mae < score(constant, validation).mae


def test_the_counter_needs_no_quantizer(tmp_path):
    bank = make_bank()
    model = agent(bank, normalise=True, average=0.9)
    model.learn_epochs(1)
    model.weigher({"note": "counts"}).save(tmp_path / "model.safetensors")
    again = Weigher.load(tmp_path / "model.safetensors")
    assert again.quantizer is None
    assert again.about == {"note": "counts"}
    assert again.evaluate(bank) == model.weigher().evaluate(bank)


def test_there_is_nothing_to_calibrate():
    with pytest.raises(LibraError, match="calibrate"):
        agent(make_bank(), calibrate=True)
