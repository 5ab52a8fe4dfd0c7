"""LibraDQN: the paper's agent as a Stable-Baselines3 algorithm."""

import math

import numpy as np
import pytest
import torch
from dqn_helpers import SMALL, agent, scales
from stable_baselines3.common.callbacks import BaseCallback

from agents.libra_dqn import LibraDQN, Transitions
from libra_gym.banks import load_bank
from libra_gym.evaluation import weigh
from libra_gym.weigher import Weigher

# ----------------------------------------------------------------------------------------------- the paper's procedure


def test_the_defaults_are_the_papers():
    model = LibraDQN("ScalePolicy", scales())
    settings = model.learner.settings
    assert (model.learning_rate, settings.gamma, settings.batch_size, settings.update_every) == (1e-5, 0.9, 128, 100)
    assert (settings.buffer_size, settings.learning_starts, settings.easy_drop) == (10_000, 10_000, 0.5)
    assert model.q_net.q_net.settings.hidden == (1024, 1024)
    assert model.loss == "l1"


def test_epsilon_falls_by_a_twentieth_per_epoch_to_a_tenth():
    model = agent(epsilon_step=0.3)
    seen = []
    for epoch in range(1, 6):
        seen.append(model.learner.epsilon)
        model.learn_epochs(epoch, reset_num_timesteps=False)
    assert seen == pytest.approx([1.0, 0.7, 0.4, 0.1, 0.1])


def test_the_target_network_is_synced_at_the_start_of_an_epoch_and_never_else():
    model = agent()
    learner = model.learner
    model.learn_epochs(2)
    flat = lambda net: torch.cat([p.flatten() for p in net.parameters()]).clone()  # noqa: E731
    start = flat(learner.online)
    assert not torch.equal(flat(learner.target), start)
    learner.learn_block()  # the first block of the third epoch
    assert torch.equal(flat(learner.target), start)
    learner.learn_block()
    assert torch.equal(flat(learner.target), start)
    assert not torch.equal(flat(learner.online), start)


@pytest.mark.parametrize("syncs", [1, 3])
def test_the_target_may_be_synced_more_often(syncs):
    model = agent(syncs=syncs)
    learner, synced = model.learner, 0
    for _ in range(-(-len(learner.bank) // learner.settings.block)):
        before = [parameter.clone() for parameter in learner.online.parameters()]
        with torch.no_grad():
            next(learner.target.parameters()).fill_(math.nan)
        learner.learn_block()
        synced += all(map(torch.equal, learner.target.parameters(), before))
    assert synced == syncs
    assert learner.epoch == 1


def test_who_only_draws_lots_asks_no_network():
    model = agent(epsilon_start=1.0, learning_starts=500)
    model.learner.online.q = None  # would fail if it were asked
    assert model.learner.learn_block().transitions > 0


def test_an_epoch_weighs_every_patch_once():
    class Patches(BaseCallback):
        seen: list[int] = []  # noqa: RUF012

        def _on_step(self):
            replay = self.model.learner.replay
            self.seen += replay.rows.patch[: len(replay)][replay.rows.step[: len(replay)] == 0].tolist()
            replay.size = replay.position = 0
            return True

    callback = Patches()
    model = agent(learning_starts=500, easy_drop=0.0)
    model.learn_epochs(1, callback)
    assert sorted(callback.seen) == list(range(len(model.learner.bank)))


def test_one_update_per_so_many_stored_transitions():
    model = agent(update_every=10, learning_starts=1, easy_drop=0.0)
    stored = 0
    for _ in range(9):
        stored += model.learner.learn_block().transitions
    assert model.learner.updates == stored // 10
    assert model.learner.credit == stored % 10


def test_learning_waits_for_enough_transitions():
    model = agent(learning_starts=10_000, buffer_size=10_000)
    model.learn_epochs(1)
    assert model.learner.updates == 0


def test_a_coin_is_thrown_for_each_patch_and_step():
    learner = agent(epsilon_start=0.5, epsilon_step=0.0).learner
    with torch.no_grad():
        learner.online.out.weight.zero_()
        learner.online.out.bias.copy_(torch.arange(9) == 3)
    middle = torch.full((4000,), 30)  # where every weight is legal
    history = torch.zeros(4000, learner.task.max_steps, dtype=torch.uint8)
    chosen = learner._act(learner._embed(torch.zeros(4000, dtype=torch.long)), history, middle, middle)
    share = (chosen == 3).float().mean()
    assert share == pytest.approx(0.5 + 0.5 / 9, abs=0.03)
    assert np.bincount(chosen, minlength=9).min() > 100


def test_only_legal_actions_are_ever_taken():
    model = agent(epsilon_start=1.0, easy_drop=0.0)
    model.learn_epochs(1)
    replay = model.learner.replay
    rows = Transitions(*(column[: len(replay)].long() for column in replay.rows))
    assert model.learner.task.legal(rows.value).gather(1, rows.action[:, None]).all()


def test_easy_transitions_are_dropped_by_half():
    every, half = agent(easy_drop=0.0, learning_starts=500), agent(easy_drop=1.0, learning_starts=500)
    for model in (every, half):
        model.learner.learn_block()

    def error(model):
        learner = model.learner
        rows = learner.replay.rows
        return (learner.truth[rows.patch.long()] - rows.value)[: len(learner.replay)].abs()

    assert (error(every) <= 1).any()
    assert (error(half) > 1).all()


def test_eq_16_the_target_of_a_taken_action():
    model = agent(easy_drop=0.0)
    learner = model.learner
    model.learn_epochs(1)
    batch = learner.replay.sample(40, learner.generator)
    features = learner.bank.gather(batch.patch)
    predicted, wanted, _ = learner._taken_backups(batch, features)
    for i in range(40):
        patch, value, step, action = (int(column[i]) for column in (batch.patch, batch.value, batch.step, batch.action))
        truth = int(learner.truth[patch])
        task = learner.task
        reward = float(task.reward(*map(np.array, (truth, value, action, step))))
        history = batch.history[i].clone()
        x = features[i : i + 1]
        assert predicted[i].item() == pytest.approx(
            learner.online(x, task.encode(history[None]))[0, action].item(), rel=1e-4
        )
        if not task.ends(np.array(action), np.array(step)):
            history[step] = action + 1
            q = learner.target(x, task.encode(history[None]))[0].detach().numpy()
            after = task.place(np.array(value), np.array(action))
            reward += 0.9 * q[task.legal(after)].max()
        assert wanted[i].item() == pytest.approx(reward, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_all_backups_hold_the_taken_one(double):
    model = agent(double=double, easy_drop=0.0)
    model.learn_epochs(1)
    learner = model.learner
    batch = learner.replay.sample(60, learner.generator)
    features = learner.bank.gather(batch.patch)
    predicted, wanted, _ = learner._taken_backups(batch, features)
    all_predicted, all_wanted, _ = learner._all_backups(batch, features)
    legal = learner.task.legal(batch.value)
    row, action = legal.nonzero(as_tuple=True)
    taken = action == batch.action[row]
    torch.testing.assert_close(all_predicted[taken], predicted)
    torch.testing.assert_close(all_wanted[taken], wanted)


def test_a_masked_target_never_uses_an_illegal_action():
    model = agent(mask_target=True)
    learner = model.learner
    with torch.no_grad():
        learner.target.out.bias[:] = torch.tensor([100.0] * 4 + [0.0] * 5)  # taking weights off an empty pan
    features = learner.bank.gather(torch.arange(5))
    history = torch.zeros(5, 8, dtype=torch.uint8)
    assert (learner._best_next(features, history, torch.zeros(5, dtype=torch.long)) < 50).all()


# ------------------------------------------------------------------------------------------------ the loop on a device


def test_no_numpy_and_no_lists_in_the_loop(monkeypatch):
    model = agent()
    model.learner.learn_block()
    calls = []
    for name in ("numpy", "tolist", "__array__", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, lambda self, *args, name=name, **kwargs: calls.append(name))
    model.learner.learn_block()
    monkeypatch.undo()
    assert calls == []


@pytest.mark.parametrize("encoding", ["value", "index"])
def test_the_fast_path_and_plain_predict_weigh_alike(encoding):
    """On real VGG16 features, and with a network that has learnt something."""
    bank = load_bank("demo").split("test")
    env = scales(bank, 64, split=None, weight_encoding=encoding)
    model = agent(env, network={**SMALL, "hidden": [64, 64]}, normalise=True, update_every=50)
    model.learn_epochs(2)
    fast = Weigher(model.q_net.q_net, env.task, bank.quantizer).weigh(bank)
    plain = weigh(model, bank, env.task)
    assert len(np.unique(fast.actions)) > 3
    same = (fast.actions == plain.actions).all(1)
    assert same.mean() > 0.995  # a tie within float rounding may fall either way


def test_an_average_of_the_weights_follows_the_network():
    model = agent(average=0.9)
    learner = model.learner
    model.learn_epochs(2)
    flat = lambda net: torch.cat([p.flatten() for p in net.parameters()])  # noqa: E731
    before, online = flat(learner.averaged).clone(), flat(learner.online)
    assert not torch.equal(before, online)
    assert model.weigher().network is learner.averaged
    learner._update()
    share = max(0.1, 10 / (learner.updates + 10))
    expected = before.lerp(flat(learner.online), share)
    torch.testing.assert_close(flat(learner.averaged), expected)


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_training_can_stop_anywhere_and_go_on_bit_for_bit(average):
    def weights(model):
        return torch.cat([p.flatten() for p in model.learner.judged.parameters()])

    through, stopped = agent(average=average), agent(average=average)
    through.learn_epochs(3)
    for _ in range(4):  # in the middle of an epoch
        stopped.learner.learn_block()
    tensors, numbers = stopped.learner.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    resumed = agent(seed=99, average=average)
    resumed.learner.load_state(tensors, numbers)
    resumed.learn_epochs(3, reset_num_timesteps=False)
    assert torch.equal(weights(through), weights(resumed))
