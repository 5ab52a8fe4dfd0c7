"""LibraDQN among Stable-Baselines3's: learn, save, load, set_env, callbacks, and environments that are no scales."""

import io
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from banks import make_bank
from dqn_helpers import SMALL, agent, scales
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.evaluation import evaluate_policy

from agents import make_vec_env
from agents.libra_dqn import LibraDQN
from libra_gym.bank import BankImage, FeatureBank
from libra_gym.banks import load_bank
from libra_gym.errors import LibraError
from libra_gym.task import WeighingTask


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
        average=0.99,  # from update to update the network itself is too restless to judge by
    )
    bank = load_bank("demo", "test")
    before = model.weigher().evaluate(bank)
    model.learn_epochs(7)
    after = model.weigher().evaluate(bank)
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
    assert env.task == WeighingTask.counts(float(load_bank("demo", "train").counts.max()))


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


@pytest.mark.parametrize("place", ["file", "memory"])
def test_the_replay_is_kept_without_pickle(tmp_path, place):
    model = agent()
    model.learn(200)
    where = tmp_path / "replay.pkl" if place == "file" else io.BytesIO()
    model.save_replay_buffer(where)
    other = agent(seed=1)
    if place == "memory":
        where.seek(0)
    other.load_replay_buffer(where)
    ours, theirs = model.learner.replay, other.learner.replay
    assert (len(theirs), theirs.position) == (len(ours), ours.position)
    assert all(torch.equal(a, b) for a, b in zip(ours.rows, theirs.rows))


def test_a_replay_that_is_full_fits_in_a_larger_one(tmp_path):
    model = agent(buffer_size=60, batch_size=16)
    model.learn(200)
    model.save_replay_buffer(tmp_path / "replay")
    other = agent(buffer_size=90, batch_size=16)
    other.load_replay_buffer(tmp_path / "replay")
    assert (len(other.learner.replay), other.learner.replay.position) == (60, 60)
    other.learn(40, reset_num_timesteps=False)
    assert len(other.learner.replay) == 90


def test_a_replay_that_does_not_fit_is_refused(tmp_path):
    model, path = agent(), tmp_path / "replay"
    model.learn(200)
    model.save_replay_buffer(path)
    with pytest.raises(LibraError, match="has room for 60 of 8"):
        agent(buffer_size=60, learning_starts=10, batch_size=16).load_replay_buffer(path)
    with pytest.raises(LibraError, match="of another bank"):
        agent(scales(make_bank(3, 1, 2))).load_replay_buffer(path)
    path.write_bytes(b"nothing")
    with pytest.raises(LibraError, match="is no replay buffer"):
        model.load_replay_buffer(path)


def test_what_a_saved_network_has_learnt_with_cannot_be_changed(tmp_path):
    agent(average=0.9).save(tmp_path / "m")
    env = scales()
    assert LibraDQN.load(tmp_path / "m", env=env, average=0.5).average == 0.5
    with pytest.raises(LibraError, match=r"average is 0\.0, but the saved agent was made with 0\.9"):
        LibraDQN.load(tmp_path / "m", env=env, average=0.0)
    with pytest.raises(LibraError, match="normalise is False in the saved agent"):
        LibraDQN.load(tmp_path / "m", env=env, normalise=True)


def test_an_agent_with_settings_that_did_nothing_can_still_be_loaded(tmp_path):
    model = agent(gamma=0.0)
    model.double = True  # as earlier versions let it be
    model.save(tmp_path / "m")
    assert LibraDQN.load(tmp_path / "m", env=scales()).double


def test_another_loss_is_loaded_without_what_belongs_to_the_one_before(tmp_path):
    agent(loss="huber", huber_delta=0.3).save(tmp_path / "m")
    assert LibraDQN.load(tmp_path / "m").huber_delta == 0.3
    assert LibraDQN.load(tmp_path / "m", loss="l1").huber_delta == 1.0
    with pytest.raises(LibraError, match=r"huber_delta is 0\.3, but the loss is 'l1'"):
        LibraDQN.load(tmp_path / "m", loss="l1", huber_delta=0.3)


@pytest.mark.parametrize("idle", [{"double": True}, {"syncs": 8}, {"mask_target": False}])
def test_without_discount_the_target_networks_settings_are_refused(idle):
    with pytest.raises(LibraError, match="is about later rewards"):
        agent(gamma=0.0, **idle)


def test_sb3s_checkpoints_keep_the_replay(tmp_path):
    model = agent()
    model.learn(200, CheckpointCallback(3, str(tmp_path), save_replay_buffer=True))
    newest = max(tmp_path.glob("rl_model_replay_buffer_*"), key=lambda path: int(path.stem.split("_")[-2]))
    other = agent(seed=1)
    other.load_replay_buffer(newest)
    assert 0 < len(other.learner.replay) <= len(model.learner.replay)


def test_an_agent_without_scales_says_that_it_needs_them_first(tmp_path):
    model = agent()
    model.learn(200)
    model.save(tmp_path / "agent.zip")
    model.save_replay_buffer(tmp_path / "replay")
    loaded = LibraDQN.load(tmp_path / "agent.zip", device="cpu")
    for act in (lambda: loaded.load_replay_buffer(tmp_path / "replay"), loaded.weigher):
        with pytest.raises(LibraError, match=r"has no scales yet.*set_env"):
            act()
    loaded.set_env(scales())
    loaded.load_replay_buffer(tmp_path / "replay")
    assert len(loaded.learner.replay) == len(model.learner.replay)


def test_the_same_scales_once_more_change_nothing():
    model, other = agent(), agent()
    for each in (model, other):
        each.learn(100)
    model.set_env(model.get_env())
    model.set_env(scales())  # of an equal bank
    assert model.learner.cursor == other.learner.cursor > 0
    for each in (model, other):
        each.learn(300, reset_num_timesteps=False)
    assert torch.equal(next(model.q_net.parameters()), next(other.q_net.parameters()))
    model.set_env(scales(make_bank(seed=1)))
    assert len(model.learner.replay) == model.learner.cursor == 0


def test_a_replay_of_another_bank_or_scale_is_refused(tmp_path):
    model = agent()
    model.learn(200)
    model.save_replay_buffer(tmp_path / "replay")
    with pytest.raises(LibraError, match="is of another bank"):
        agent(scales(make_bank(seed=1))).load_replay_buffer(tmp_path / "replay")
    counts = make_vec_env("LibraWeighingContinuous-v0", num_envs=16, bank=make_bank())
    with pytest.raises(LibraError, match="is of a scale with the pool"):
        agent(counts).load_replay_buffer(tmp_path / "replay")


@pytest.mark.parametrize(
    "idle",
    [
        {"train_freq": 99},
        {"gradient_steps": 7},
        {"target_update_interval": 1},
        {"exploration_fraction": 0.9},
        {"stats_window_size": 5},
        {"policy_kwargs": {"normalize_images": False}},
    ],
)
def test_settings_of_sb3s_own_loop_are_refused_on_the_scales(idle):
    with pytest.raises(LibraError, match="is of SB3's own loop"):
        LibraDQN("ScalePolicy", scales(), **idle)
