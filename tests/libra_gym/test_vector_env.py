"""The native batch: what Gymnasium's own vector environments would do, thousands of patches at a time."""

import copy
import pickle
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from libra_gym.banks import load_bank
from libra_gym.envs import WeighingContinuousEnv, WeighingContinuousVectorEnv, WeighingEnv, WeighingVectorEnv
from libra_gym.errors import LibraError

IDS = ("LibraWeighing-v0", "LibraWeighingContinuous-v0")
KINDS = [(WeighingEnv, WeighingVectorEnv), (WeighingContinuousEnv, WeighingContinuousVectorEnv)]


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(("single", "vector"), KINDS)
def test_the_batch_equals_gymnasiums_own_step_for_step(small_bank, single, vector, mode):
    number = 7
    ours = vector(number, small_bank, autoreset_mode=mode)
    theirs = SyncVectorEnv([lambda: single(small_bank)] * number, autoreset_mode=mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    _same(ours.reset(seed=123), theirs.reset(seed=123))
    rng = np.random.default_rng(0)
    for _ in range(600):
        actions = rng.integers(ours.single_action_space.n, size=number)
        result, expected = ours.step(actions), theirs.step(actions)
        _same(result, expected)
        ended = result[2]
        if mode is AutoresetMode.DISABLED and ended.any():
            _same(ours.reset(options={"reset_mask": ended.copy()}), theirs.reset(options={"reset_mask": ended.copy()}))


def _same(ours, theirs):
    """Equal, nested dictionaries and object arrays included."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            _same(ours[key], theirs[key])
    elif isinstance(ours, tuple):
        for a, b in zip(ours, theirs, strict=True):
            _same(a, b)
    elif isinstance(ours, np.ndarray) and ours.dtype != object:
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(ours, np.ndarray):
        for a, b in zip(ours, theirs, strict=True):
            _same(a, b)
    else:
        assert ours == theirs


def test_seeds_may_be_given_one_by_one(small_bank):
    ours = WeighingVectorEnv(3, small_bank).reset(seed=[5, 1, 9])[1]["patch"]
    assert ours.tolist() == [WeighingEnv(small_bank).reset(seed=s)[1]["patch"] for s in (5, 1, 9)]


def test_scales_without_a_seed_of_their_own_differ():
    starts = [gym.make_vec(IDS[0], num_envs=4).reset(seed=[None] * 4)[1]["patch"].tolist() for _ in range(2)]
    assert starts[0] != starts[1]
    assert len(set(starts[0])) > 1
    env = gym.make_vec(IDS[0], num_envs=3)
    first = env.reset(seed=[7, None, None])[1]["patch"]
    assert first[0] == gym.make(IDS[0]).reset(seed=7)[1]["patch"]
    order = env.unwrapped.scales.order
    before = [order.epoch]
    env.reset(seed=[None] * 3)  # the second time, no seed means to go on
    assert [order.epoch] == before


def test_scales_that_are_first_reset_later_have_seeds_of_their_own(small_bank):
    starts = []
    for _ in range(2):
        env = WeighingVectorEnv(8, small_bank, autoreset_mode="Disabled")
        first = np.arange(8) == 0
        env.reset(options={"reset_mask": first})
        starts.append(env.reset(options={"reset_mask": ~first})[1]["patch"][1:].tolist())
        assert len(set(starts[-1])) > 1
    assert starts[0] != starts[1]


def test_a_reset_takes_the_last_reward_away(small_bank):
    env = WeighingVectorEnv(2, small_bank, render_mode="ansi")
    env.reset(seed=0)
    env.step(np.array([7, 7]))
    env.reset()
    assert all("reward +0" in text for text in env.render())


def test_too_few_actions_after_an_end_are_named(small_bank):
    env = WeighingVectorEnv(3, small_bank)
    env.reset(seed=0)
    env.step(np.array([8, 8, 0]))
    with pytest.raises(LibraError, match="Actions must be 3"):
        env.step(np.array([8]))


def test_environments_share_their_banks_rows_whatever_the_quantizer(small_bank):
    from libra_gym.envs import scales

    bank = small_bank.select([0])
    before = len(scales._ROWS)
    envs = [WeighingVectorEnv(40, bank.with_quantizer(small_bank.quantizer)) for _ in range(3)]
    first = [env.reset(seed=0)[0] for env in envs]
    assert len(scales._ROWS) == before  # an agent that learns from the bank itself takes no action here
    after = [env.step(np.zeros(40, np.int64))[0] for env in envs]
    assert len(scales._ROWS) == before + 1
    np.testing.assert_array_equal(first[0][:, : bank.channels], after[0][:, : bank.channels])
    del envs, bank
    assert len(scales._ROWS) == before


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_step_before_the_first_reset_is_refused(small_bank, mode):
    with pytest.raises(gym.error.ResetNeeded):
        WeighingVectorEnv(3, small_bank, autoreset_mode=mode).step(np.zeros(3, np.int64))


def test_a_reset_mask_is_left_in_the_options(small_bank):
    env = WeighingVectorEnv(3, small_bank, autoreset_mode="Disabled")
    env.reset(seed=0)
    options = {"reset_mask": np.array([True, False, True])}
    env.reset(options=options)
    assert "reset_mask" in options


def test_the_caller_keeps_what_it_was_given(small_bank):
    env = WeighingVectorEnv(3, small_bank, autoreset_mode="SameStep")
    env.reset(seed=0)
    _, rewards, ended, _, infos = env.step(np.full(3, 8))
    kept = rewards.copy(), ended.copy(), infos["_final_obs"].copy()
    env.step(np.full(3, 4))
    np.testing.assert_array_equal(kept[0], rewards)
    np.testing.assert_array_equal(kept[1], ended)
    np.testing.assert_array_equal(kept[2], infos["_final_obs"])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_no_scale_is_stepped_before_its_first_reset(small_bank, mode):
    envs = WeighingVectorEnv(3, small_bank, autoreset_mode=mode)
    envs.reset(seed=0, options={"reset_mask": np.array([True, False, True])})
    with pytest.raises(gym.error.ResetNeeded, match="Scale 1 has no patch yet"):
        envs.step(np.zeros(3, dtype=np.int64))
    envs.reset(options={"reset_mask": np.array([False, True, False])})
    envs.step(np.zeros(3, dtype=np.int64))


def test_patches_may_be_named_for_all_scales_or_for_those_that_are_reset(small_bank):
    envs = WeighingVectorEnv(3, small_bank, autoreset_mode="Disabled")
    assert envs.reset(seed=0, options={"patch": [4, 5, 6]})[1]["patch"].tolist() == [4, 5, 6]
    mask = np.array([True, False, True])
    assert envs.reset(options={"reset_mask": mask, "patch": [1, 2, 3]})[1]["patch"].tolist() == [1, 0, 3]
    assert envs.scales.patch.tolist() == [1, 5, 3]
    envs.reset(options={"reset_mask": mask, "patch": [7, 8]})
    assert envs.scales.patch.tolist() == [7, 5, 8]
    for wrong in (1.9, [1.0, 2.0, 3.0], [1, 2, 3, 4]):
        with pytest.raises(LibraError, match="one whole number or 3 of them"):
            envs.reset(options={"patch": wrong})


def test_seeds_of_numpy_are_taken_and_negative_ones_refused(small_bank):
    envs = WeighingVectorEnv(2, small_bank)
    plain = envs.reset(seed=[5, 9])[1]["patch"].tolist()
    assert envs.reset(seed=list(np.array([5, 9])))[1]["patch"].tolist() == plain
    with pytest.raises(LibraError, match="must not be negative; got -1"):
        envs.reset(seed=[5, -1])


def test_a_bank_may_be_named_by_any_kind_of_path(small_bank, tmp_path):
    small_bank.save(tmp_path / "bank.safetensors")
    envs = gym.make_vec(IDS[0], num_envs=2, bank=tmp_path / "bank.safetensors")
    assert len(envs.unwrapped.scales.bank) == len(small_bank.split("train"))


def test_a_deep_copy_shares_features_and_not_its_state(small_bank):
    envs = WeighingVectorEnv(2, small_bank, split=None)
    envs.reset(seed=0)
    twin = copy.deepcopy(envs)
    assert twin.scales._rows is envs.scales._rows
    _same(envs.step(np.array([7, 8])), twin.step(np.array([7, 8])))
    envs.step(np.array([7, 8]))
    assert twin.scales.value.tolist() != envs.scales.value.tolist()


def test_a_first_reset_that_is_refused_resets_nothing(small_bank):
    env = WeighingVectorEnv(3, small_bank)
    with pytest.raises(LibraError, match="Patch 1000000000 is not in bank"):
        env.reset(seed=0, options={"patch": 10**9})
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.full(3, 8))


def test_actions_with_a_state_beside_them_are_refused_in_a_sentence(small_bank):
    env = WeighingVectorEnv(3, small_bank)
    env.reset(seed=0)
    with pytest.raises(LibraError, match=r"Actions must be 3 whole numbers, not a tuple"):
        env.step((np.zeros(3, np.int64), None))


@pytest.mark.parametrize("limit", [0, 2**31])
def test_features_beyond_the_observation_space_are_refused(small_bank, monkeypatch, limit):
    monkeypatch.setattr("libra_gym.envs.scales.IN_MEMORY_UP_TO", limit)
    env = WeighingVectorEnv(40, replace(small_bank, features=small_bank.features * 1e6))
    with pytest.raises(LibraError, match="features beyond ±65,504"):
        env.reset(seed=0)


@pytest.mark.parametrize("number", [3, 40], ids=["read", "laid out"])
def test_observations_do_not_hang_on_torchs_defaults(small_bank, number):
    env = WeighingVectorEnv(number, small_bank.select([1]))
    torch.set_default_dtype(torch.float64)
    try:
        env.reset(seed=0)
        observations = env.step(np.full(number, 7))[0]
    finally:
        torch.set_default_dtype(torch.float32)
    assert observations.dtype == np.float32
    assert env.observation_space.contains(observations)


def test_a_pickled_batch_goes_on_alike_and_leaves_out_what_was_laid_out(small_bank):
    env = WeighingVectorEnv(40, small_bank)
    env.reset(seed=0)
    small = len(pickle.dumps(env))
    env.step(np.full(40, 7))
    assert len(pickle.dumps(env)) < 1.1 * small
    twin = pickle.loads(pickle.dumps(env))
    for mine, its in zip(env.step(np.full(40, 5))[:3], twin.step(np.full(40, 5))[:3]):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_an_epoch_goes_on_when_scales_get_their_first_patch_later(small_bank, order):
    env = WeighingVectorEnv(2, small_bank, order=order, autoreset_mode="Disabled")
    first = env.reset(options={"reset_mask": np.array([True, False])})[1]["patch"][0]
    second = env.reset(options={"reset_mask": np.array([False, True])})[1]["patch"][1]
    assert first != second
    assert env.scales.order._drawn == 2


def test_a_scale_for_counts_holds_what_the_fullest_training_patch_has():
    splits = ("train", "validation", "test", "train+test")
    envs = [WeighingContinuousVectorEnv(2, "demo", split) for split in splits]
    training = load_bank("demo").split("train")
    assert {env.scales.task.ceiling for env in envs} == {int(np.ceil(100 * float(training.counts.max())))}
