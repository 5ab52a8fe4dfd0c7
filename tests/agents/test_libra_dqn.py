"""LibraDQN: the paper's agent as a Stable-Baselines3 algorithm."""

import math
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from banks import make_bank
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.evaluation import evaluate_policy

from agents import make_vec_env
from agents.libra_dqn import LibraDQN, Transitions
from agents.vec_env import WeighingVecEnv
from libra_gym.bank import BankImage, FeatureBank, load_bank
from libra_gym.envs import WeighingVectorEnv
from libra_gym.errors import LibraError
from libra_gym.evaluation import weigh
from libra_gym.task import WeighingTask
from libra_gym.weigher import Weigher

SMALL = {"hidden": [32, 32], "q_scale": 1.0, "init_std": None}


def scales(bank=None, num_envs=16, **kwargs):
    bank = make_bank() if bank is None else bank
    return WeighingVecEnv(WeighingVectorEnv(num_envs, bank, autoreset_mode="SameStep", **kwargs))


def agent(env=None, network=SMALL, **kwargs):
    settings = {"learning_rate": 1e-3, "buffer_size": 500, "learning_starts": 50, "update_every": 10, "seed": 0}
    policy = {"network": network, "optimizer_class": torch.optim.Adam}
    return LibraDQN("ScalePolicy", scales() if env is None else env, policy_kwargs=policy, **(settings | kwargs))


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


# ------------------------------------------------------------------------------------------------ a citizen among SB3's


def test_it_learns_to_count_the_demo():
    env = make_vec_env(num_envs=256, rewards={"shape": "error"})
    model = agent(
        env,
        network={**SMALL, "hidden": [128, 128]},
        normalise=True,
        backup="all",
        buffer_size=20_000,
        learning_starts=1000,
        update_every=50,
        gamma=0.0,
        epsilon_end=0.5,
    )
    bank = load_bank("demo", "test")
    before = Weigher(model.q_net.q_net, env.task, env.bank.quantizer).evaluate(bank)
    model.learn_epochs(5)
    after = Weigher(model.q_net.q_net, env.task, env.bank.quantizer).evaluate(bank)
    assert after.mean_return > before.mean_return + 1
    assert after.mae < 0.7 * before.mae


def test_learn_counts_transitions_and_callbacks_are_heard(tmp_path):
    class Count(BaseCallback):
        def _on_step(self):
            return self.n_calls < 5

    model = agent()
    counter = Count()
    model.learn(10**9, [counter, CheckpointCallback(2, str(tmp_path))])
    assert counter.n_calls == 5
    assert len(list(tmp_path.glob("*.zip"))) == 2
    before = model.num_timesteps
    model.learn(200, reset_num_timesteps=False)
    assert model.num_timesteps >= before + 200


def test_saving_and_loading(tmp_path):
    model = agent(normalise=True)
    model.learn_epochs(2)
    model.save(tmp_path / "model")
    observations = model.env.reset()
    expected, _ = model.predict(observations, deterministic=True)
    bare = LibraDQN.load(tmp_path / "model")
    np.testing.assert_array_equal(bare.predict(observations, deterministic=True)[0], expected)
    again = LibraDQN.load(tmp_path / "model", env=scales())
    np.testing.assert_array_equal(again.predict(observations, deterministic=True)[0], expected)
    again.learn(500)
    bare.set_env(scales(num_envs=16))
    bare.learn(500)
    assert bare.num_timesteps >= 500


def test_what_is_loaded_counts_like_what_was_saved_and_goes_on_from_there(tmp_path):
    """By the average of the weights, which is what counts; and ε does not begin again at its start."""
    model = agent(normalise=True, average=0.9)
    model.learn_epochs(3)
    bank = make_bank(seed=3)
    expected = model.weigher().weigh(bank).actions
    model.save(tmp_path / "model")
    again = LibraDQN.load(tmp_path / "model", env=scales())
    np.testing.assert_array_equal(again.weigher().weigh(bank).actions, expected)
    assert (again.learner.epoch, again.learner.updates) == (3, model.learner.updates)
    assert again.learner.epsilon == model.learner.epsilon < 1.0
    again.learn_epochs(4, reset_num_timesteps=False)
    assert again.learner.epoch == 4

    model.set_env(scales(make_bank(seed=5)))
    np.testing.assert_array_equal(model.weigher().weigh(bank).actions, expected)
    assert (model.learner.epoch, model.learner.updates) == (3, model._n_updates)


def test_another_environment_brings_its_own_range(tmp_path):
    """The greedy action is legal on the bank that the agent is given, not on the one that it was made with."""
    few = make_bank()
    many = replace(few, counts=few.counts * 5, quantizer=None)
    assert few.num_intervals < many.num_intervals
    model = agent(scales(few))
    model.set_env(scales(many))
    model.save(tmp_path / "model")
    for each in (model, LibraDQN.load(tmp_path / "model"), LibraDQN.load(tmp_path / "model", env=scales(many))):
        assert each.q_net.task.ceiling == each.q_net_target.task.ceiling == many.num_intervals - 1
    back = LibraDQN.load(tmp_path / "model", env=scales(few))
    assert back.q_net.task == back.learner.task == back.env.task
    with pytest.raises(LibraError, match="weight_encoding is 'index', but the agent's is 'value'"):
        agent()._take_task(scales(weight_encoding="index").task)


def test_settings_may_be_used_for_several_agents():
    settings = {"network": SMALL}
    for steps in (8, 6):
        model = LibraDQN("ScalePolicy", scales(max_steps=steps), policy_kwargs=settings)
        assert model.q_net.task.max_steps == steps
    assert settings == {"network": SMALL}


def test_a_counter_that_was_started_from_keeps_its_standard_on_another_bank():
    finished = agent(normalise=True)
    finished.learner.online.mean.fill_(7.0)
    model = agent(normalise=True)
    model.start_from(finished.weigher())
    model.set_env(scales(make_bank(seed=3)))
    assert model.learner.online.mean.tolist() == [7.0] * 16


def test_without_a_seed_the_programs_own_is_kept():
    torch.manual_seed(0)
    LibraDQN("ScalePolicy", scales())
    assert torch.initial_seed() == 0


def test_loading_keeps_what_the_features_are_standardised_by(tmp_path):
    model = agent(normalise=True)
    model.save(tmp_path / "model")
    again = LibraDQN.load(tmp_path / "model", env=scales(make_bank(seed=5)))
    torch.testing.assert_close(again.q_net.q_net.mean, model.q_net.q_net.mean)


def test_evaluate_policy_and_masks():
    model = agent()
    model.learn_epochs(1)
    mean, _ = evaluate_policy(model, scales(), n_eval_episodes=40)
    assert np.isfinite(mean)
    env = scales()
    observations = env.reset()
    for _ in range(50):
        actions, _ = model.predict(observations, deterministic=True)
        assert np.take_along_axis(env.action_masks(), actions[:, None], 1).all()
        observations, *_ = env.step(actions)


def test_same_seed_same_network():
    first, second = agent(), agent()
    for model in (first, second):
        model.learn_epochs(2)
    for a, b in zip(first.q_net.parameters(), second.q_net.parameters(), strict=True):
        assert torch.equal(a, b)


def test_it_learns_cartpole_by_the_stock_path():
    model = LibraDQN(
        "MlpPolicy",
        gym.make("CartPole-v1"),
        learning_rate=2e-3,
        buffer_size=20_000,
        learning_starts=500,
        batch_size=64,
        gamma=0.99,
        train_freq=8,
        gradient_steps=4,
        target_update_interval=200,
        exploration_fraction=0.3,
        epsilon_end=0.05,
        double=True,
        loss="huber",
        policy_kwargs={"net_arch": [64, 64]},
        seed=0,
    )
    model.learn(9000)
    mean, _ = evaluate_policy(model, gym.make("CartPole-v1"), n_eval_episodes=5, warn=False)
    assert mean > 60  # a random policy keeps the pole up for about 22 steps


def test_a_continuous_scale_can_be_learnt_too():
    env = make_vec_env("LibraWeighingContinuous-v0", num_envs=64, bank="demo", split="test")
    model = agent(env, network=SMALL, normalise=True, update_every=100)
    model.learn_epochs(1)
    assert model.learner.updates > 0
    assert env.task == WeighingTask.counts(float(env.bank.counts.max()))


@pytest.mark.parametrize(("quantile", "backup"), [(0.25, "all"), (0.5, "all"), (0.75, "all"), (0.75, "taken")])
def test_an_agent_that_cannot_tell_patches_apart_weighs_the_quantile(quantile, backup):
    """Every patch looks alike, so that the least loss is at the quantile of all counts."""
    counts = np.random.default_rng(0).lognormal(0.5, 0.8, 300).astype(np.float32)
    bank = FeatureBank(
        "alike", torch.zeros(300, 4), torch.from_numpy(counts), (BankImage("a", "train", 15, 20, (480, 640), 1.0),)
    )
    env = scales(bank, num_envs=100, split=None, rewards={"shape": "error"})
    exploring = {"epsilon_start": 0.5, "epsilon_end": 0.5, "easy_drop": 0.0, "buffer_size": 20_000}
    learning = {"learning_rate": 3e-3, "final_learning_rate": 0.0, "batch_size": 64, "gamma": 0.0, "update_every": 20}
    model = agent(env, quantile=quantile, backup=backup, **exploring, **learning)
    model.learn_epochs(10)
    weighed = model.weigher().evaluate(bank).records[0].count / len(bank)
    assert abs((counts < weighed).mean() - quantile) < 0.1


@pytest.mark.parametrize(
    "settings", [{"loss": "l3"}, {"backup": "some"}, {"quantile": 1.5}, {"loss": "mse", "quantile": 0.6}]
)
def test_bad_settings_are_named(settings):
    with pytest.raises(LibraError, match=str(next(iter(settings.values())))):
        agent(**settings)


def test_epochs_need_scales():
    with pytest.raises(LibraError, match="make_vec_env"):
        LibraDQN("MlpPolicy", gym.make("CartPole-v1")).learn_epochs(1)
