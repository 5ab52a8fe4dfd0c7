"""The environments as Gymnasium citizens."""

import re
import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import libra_gym
from libra_gym.envs import WeighingContinuousEnv, WeighingContinuousVectorEnv, WeighingEnv, WeighingVectorEnv
from libra_gym.errors import LibraError
from libra_gym.task import Rewards
from libra_gym.wrappers import DictView, VectorDictView

IDS = ("LibraWeighing-v0", "LibraWeighingContinuous-v0")
KINDS = [(WeighingEnv, WeighingVectorEnv), (WeighingContinuousEnv, WeighingContinuousVectorEnv)]


# ------------------------------------------------------------------------------------------------------- registration


@pytest.mark.parametrize("env_id", IDS)
def test_the_environments_are_registered_and_need_no_arguments(env_id):
    env = gym.make(env_id)
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert env.observation_space.shape == (520,)
    assert info["action_mask"].dtype == np.int8
    assert gym.make_vec(env_id, num_envs=5).reset(seed=0)[0].shape == (5, 520)


def test_registering_twice_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libra_gym.register_envs()


def test_the_number_of_actions():
    assert gym.make(IDS[0]).action_space == gym.spaces.Discrete(9)
    assert gym.make(IDS[1]).action_space == gym.spaces.Discrete(19)


def test_a_native_batch_is_what_make_vec_gives():
    assert isinstance(gym.make_vec(IDS[0], num_envs=3).unwrapped, WeighingVectorEnv)


def test_the_spec_can_be_written_down():
    env = gym.make(IDS[0], rewards={"squeezing": False}, max_steps=6)
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.unwrapped.scales.task == env.unwrapped.scales.task


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("render_mode", ["rgb_array", "ansi"])
def test_gymnasiums_checker_finds_nothing(env_id, render_mode):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(env_id, render_mode=render_mode).unwrapped)


def test_importing_is_light():
    """No torch-vision, SB3, wandb or matplotlib, and under half a second on top of gymnasium, numpy and torch."""
    program = """
import gymnasium, numpy, torch, sys, time
start = time.perf_counter()
import libra_gym
print(time.perf_counter() - start)
heavy = {"torchvision", "stable_baselines3", "wandb", "matplotlib", "cv2", "scipy"} & set(sys.modules)
assert not heavy, heavy
"""
    seconds = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert float(seconds) < 0.5


# ------------------------------------------------------------------------------------------------------------- playing


def test_an_episode_by_hand(small_bank):
    env = WeighingEnv(small_bank)
    patch = int((small_bank.split("train").intervals == 0).nonzero()[0])
    observation, info = env.reset(seed=0, options={"patch": patch})
    assert info["patch"] == patch
    assert info["privileged_truth"] == 0
    assert not observation[-8:].any()
    np.testing.assert_array_equal(observation[:-8], small_bank.split("train").features[patch])
    observation, reward, terminated, truncated, info = env.step(7)  # +10 where nobody is
    assert (reward, terminated, truncated, info["value"], info["step"]) == (-3.0, False, False, 10.0, 1)
    assert observation[-8:].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    _, reward, *_ = env.step(0)  # −10 again: the optimal weight, back in range
    assert reward == 3.0
    _, reward, terminated, *_ = env.step(8)
    assert (reward, terminated) == (5.0, True)


def test_step_eight_terminates_and_does_not_truncate(small_bank):
    env = WeighingEnv(small_bank)
    env.reset(seed=0)
    for step in range(8):
        _, _, terminated, truncated, _ = env.step(4)
        assert terminated == (step == 7)
        assert not truncated


def test_stepping_on_after_the_end_is_refused(small_bank):
    env = WeighingEnv(small_bank)
    env.reset(seed=0)
    env.step(8)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(8)


def test_the_truth_is_not_in_the_observation(small_bank):
    """Same features, other counts: the observations are the same."""
    import dataclasses

    other = dataclasses.replace(small_bank, counts=small_bank.counts.flip(0))
    for seed in range(5):
        ours, theirs = WeighingEnv(small_bank), WeighingEnv(other)
        np.testing.assert_array_equal(ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0])
        for action in (4, 5, 6):
            np.testing.assert_array_equal(ours.step(action)[0], theirs.step(action)[0])


def test_masks_tell_the_legal_actions(small_bank):
    env = WeighingEnv(small_bank)
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert env.action_masks().dtype == np.bool_
    np.testing.assert_array_equal(env.action_masks(), info["action_mask"].astype(bool))


def test_observations_are_copies(small_bank):
    env = WeighingVectorEnv(4, small_bank)
    observations, info = env.reset(seed=0)
    before = observations.copy()
    observations[:] = 7
    info["action_mask"][:] = 1
    stepped, *_ = env.step(np.full(4, 4))
    np.testing.assert_array_equal(stepped[:, :16], before[:, :16])


@pytest.mark.parametrize("encoding", ["value", "index"])
@pytest.mark.parametrize("single", [WeighingEnv, WeighingContinuousEnv])
def test_observations_stay_in_bounds(small_bank, single, encoding):
    env = single(small_bank, weight_encoding=encoding)
    observation, _ = env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(300):
        assert env.observation_space.contains(observation)
        observation, _, terminated, *_ = env.step(int(rng.integers(env.action_space.n)))
        if terminated:
            assert env.observation_space.contains(observation)
            observation, _ = env.reset()


@pytest.mark.parametrize("rewards", [None, {"squeezing": False}, Rewards(squeezing=False)])
def test_real_valued_counts_keep_their_tolerance_whatever_else_is_changed(small_bank, rewards):
    task = WeighingContinuousEnv(small_bank, rewards=rewards).scales.task
    assert task.rewards.balance_tolerance == 0.5
    assert task.rewards.squeezing is (rewards is None)


@pytest.mark.parametrize("rewards", [{"balance_tolerance": 0}, Rewards(balance_tolerance=0)])
def test_a_tolerance_of_none_at_all_is_not_taken_for_the_usual_one(small_bank, rewards):
    assert WeighingContinuousEnv(small_bank, rewards=rewards).scales.task.rewards.balance_tolerance == 0.0
    assert WeighingEnv(small_bank, rewards=rewards).scales.task.rewards.balance_tolerance == 0.0


# -------------------------------------------------------------------------------------------------------------- order


def _patches(env, episodes):
    seen = []
    for _ in range(episodes):
        seen.append(env.reset()[1]["patch"])
    return seen


def test_an_epoch_shows_each_patch_once(small_bank):
    patches = len(small_bank.split("train"))
    for order in ("sequential", "shuffled"):
        env = WeighingEnv(small_bank, order=order)
        first = [env.reset(seed=3)[1]["patch"], *_patches(env, patches - 1)]
        assert sorted(first) == list(range(patches))
        assert env.epoch == 0
        second = _patches(env, patches)
        assert env.epoch == 1
        assert sorted(second) == list(range(patches))
        assert (first == second) == (order == "sequential")


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_a_batch_shares_one_pass_through_the_bank(small_bank, order):
    patches = len(small_bank.split("train"))
    env = WeighingVectorEnv(5, small_bank, order=order, autoreset_mode="SameStep")
    seen = list(env.reset(seed=0)[1]["patch"])
    while len(seen) < 3 * patches:
        *_, infos = env.step(np.full(5, 8))
        seen.extend(infos["patch"])
    for epoch in range(3):
        assert sorted(seen[epoch * patches : (epoch + 1) * patches]) == list(range(patches))
    assert env.epoch == (len(seen) - 1) // patches


def test_random_patches_are_uniform(small_bank):
    patches = len(small_bank.split("train"))
    env = WeighingVectorEnv(4096, small_bank)
    seen = np.concatenate([env.reset(seed=seed)[1]["patch"] for seed in (0, 10_000, 20_000)])
    counts = np.bincount(seen, minlength=patches)
    expected = len(seen) / patches
    assert ((counts - expected) ** 2 / expected).sum() < 2 * patches  # far beyond any χ² quantile that matters


# -------------------------------------------------------------------------------------------------------------- seeds


@pytest.mark.parametrize("env_id", IDS)
def test_same_seed_same_everything(env_id):
    first, second = gym.make(env_id), gym.make(env_id)
    a, b = first.reset(seed=42), second.reset(seed=42)
    rng = np.random.default_rng(0)
    for _ in range(200):
        np.testing.assert_equal(a, b)
        action = rng.integers(first.action_space.n)
        a, b = first.step(action), second.step(action)
        if a[2]:
            np.testing.assert_equal(a, b)
            a, b = first.reset(), second.reset()


def test_another_seed_another_patch():
    env = gym.make(IDS[0])
    assert len({env.reset(seed=seed)[1]["patch"] for seed in range(30)}) > 20


def test_without_a_seed_runs_differ():
    starts = {tuple(gym.make_vec(IDS[0], num_envs=8).reset()[1]["patch"]) for _ in range(3)}
    assert len(starts) == 3


def test_seeds_mean_the_same_in_another_process():
    program = """
import gymnasium, libra_gym
print(gymnasium.make_vec("LibraWeighing-v0", num_envs=6).reset(seed=9)[1]["patch"].tolist())
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(gym.make_vec(IDS[0], num_envs=6).reset(seed=9)[1]["patch"].tolist())


# ----------------------------------------------------------------------------------------------------- views, pictures


def test_the_dict_view_shows_the_parts(small_bank):
    env = DictView(WeighingEnv(small_bank))
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert observation["features"].shape == (16,)
    assert observation["weights"].shape == (8,)
    batch = VectorDictView(WeighingVectorEnv(3, small_bank))
    observations, _ = batch.reset(seed=0)
    assert batch.observation_space.contains(observations)
    np.testing.assert_array_equal(observations["features"][0], observation["features"])


def test_the_dict_view_is_recreated_from_its_spec_and_is_of_a_scale_alone():
    env = DictView(gym.make("LibraWeighing-v0", split="test"))
    again = gym.make(env.spec)
    assert again.observation_space == env.observation_space
    for seed in (0, 1):
        first, second = env.reset(seed=seed)[0], again.reset(seed=seed)[0]
        np.testing.assert_array_equal(first["features"], second["features"])
    with pytest.raises(LibraError, match="put it on before other wrappers of observations"):
        DictView(gym.wrappers.FrameStackObservation(gym.make("LibraWeighing-v0"), 3))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_dict_views_of_a_batch_are_those_of_single_scales(small_bank, mode):
    ours = VectorDictView(WeighingVectorEnv(3, small_bank, autoreset_mode=mode))
    theirs = gym.vector.SyncVectorEnv([lambda: DictView(WeighingEnv(small_bank))] * 3, autoreset_mode=mode)
    ours.reset(seed=4)
    theirs.reset(seed=4)
    for action in (7, 4, 8):
        mine, other = ours.step(np.full(3, action)), theirs.step(np.full(3, action))
        for part in ("features", "weights"):
            np.testing.assert_array_equal(mine[0][part], other[0][part])
        assert ("final_obs" in mine[4]) == ("final_obs" in other[4])
        if "final_obs" in mine[4]:
            for last, expected in zip(mine[4]["final_obs"], other[4]["final_obs"]):
                np.testing.assert_array_equal(last["weights"], expected["weights"])


def test_a_generator_that_the_user_sets_draws_the_patches(small_bank):
    def patches(env):
        return [int(np.atleast_1d(env.reset()[1]["patch"])[0]) for _ in range(5)]

    for make in (lambda: WeighingEnv(small_bank), lambda: WeighingVectorEnv(1, small_bank)):
        drawn = []
        for number in (1, 2, 1):
            env = make()
            env.np_random = np.random.default_rng(number)
            drawn.append(patches(env))
        assert drawn[0] == drawn[2] != drawn[1]


def test_a_shuffled_pass_that_is_begun_anew_has_the_order_of_the_seed_that_began_it(small_bank):
    env = WeighingVectorEnv(2, small_bank, order="shuffled", autoreset_mode="Disabled")
    env.reset(seed=0)
    second = {"reset_mask": np.array([False, True])}
    drawn = [int(env.reset(seed=seed, options=second)[1]["patch"][1]) for seed in (5, 99, 5)]
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"split": ["train"]}, "split is"), ({"split": 1}, "split is 1"), ({"num_envs": 2.0}, "num_envs is 2.0")],
)
def test_arguments_of_another_kind_are_named(arguments, said):
    with pytest.raises(LibraError, match=said):
        gym.make_vec("LibraWeighing-v0", **arguments)


def test_pictures_and_text(small_bank):
    env = WeighingEnv(small_bank, render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    assert before.dtype == np.uint8
    assert before.ndim == 3
    env.step(6)
    env.needle = np.linspace(-1, 1, 9)
    assert (env.render() != before).any()
    text = WeighingEnv(small_bank, render_mode="ansi")
    text.reset(seed=0)
    text.step(6)
    assert "+5" in text.render()
    batch = WeighingVectorEnv(2, small_bank, render_mode="rgb_array")
    batch.reset(seed=0)
    assert len(batch.render()) == 2


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"bank": "no-such-bank"}, "no-such-bank"),
        ({"split": "holiday"}, "holiday"),
        ({"rewards": {"gild": 1}}, "gild"),
        ({"rewards": "x"}, "rewards is 'x'"),
        ({"bank": None}, "bank is None"),
        ({"max_steps": 0}, "0"),
        ({"weight_encoding": "one-hot"}, "one-hot"),
        ({"order": "backwards"}, "backwards"),
        ({"render_mode": "video"}, "video"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*render_mode")
@pytest.mark.filterwarnings("ignore:.*rendering mode")
@pytest.mark.parametrize("env_id", IDS)
def test_bad_arguments_are_named(env_id, arguments, named):
    with pytest.raises(LibraError, match=named):
        gym.make(env_id, **arguments)
    with pytest.raises(LibraError, match=named):
        gym.make_vec(env_id, num_envs=2, **arguments)


@pytest.mark.parametrize("number", [0, -3])
def test_no_environments_are_refused(number):
    with pytest.raises(LibraError, match=str(number)):
        gym.make_vec(IDS[0], num_envs=number)


def test_unknown_arguments_are_a_type_error():
    with pytest.raises(TypeError):
        gym.make(IDS[0], colour="blue")


@pytest.mark.parametrize("action", [-1, 9, 100])
def test_actions_out_of_range_are_named(small_bank, action):
    env = WeighingEnv(small_bank)
    env.reset(seed=0)
    with pytest.raises(LibraError, match=str(action)):
        env.step(action)
    batch = WeighingVectorEnv(3, small_bank)
    batch.reset(seed=0)
    with pytest.raises(LibraError, match=str(action)):
        batch.step(np.array([0, action, 0]))


def test_actions_must_be_whole_and_one_for_each(small_bank):
    batch = WeighingVectorEnv(3, small_bank)
    batch.reset(seed=0)
    with pytest.raises(LibraError, match="float"):
        batch.step(np.array([0.5, 1.0, 1.0]))
    with pytest.raises(LibraError, match="3"):
        batch.step(np.array([4, 4]))


def test_a_patch_that_is_not_there_is_named(small_bank):
    with pytest.raises(LibraError, match="4711"):
        WeighingEnv(small_bank).reset(options={"patch": 4711})


def test_a_bad_reset_mask_is_refused(small_bank):
    env = WeighingVectorEnv(3, small_bank, autoreset_mode="Disabled")
    env.reset(seed=0)
    with pytest.raises(LibraError, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([False, False, False])})


def test_an_unknown_autoreset_mode_is_named(small_bank):
    with pytest.raises(LibraError, match="Sometimes"):
        WeighingVectorEnv(3, small_bank, autoreset_mode="Sometimes")


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ({"shape": "error", "squeezing": False}, "squeezing=False, which rewards of shape 'error' do not have"),
        ({"shape": "error", "end": 50.0}, "end=50.0"),
        ({"error_offset": 1.0}, "error_offset=1.0, which rewards of shape 'paper' do not have"),
        (Rewards(shape="error", guide=2.0), "guide=2.0"),
    ],
)
def test_constants_that_a_shape_of_rewards_does_not_have_are_refused(small_bank, rewards, said):
    with pytest.raises(LibraError, match=re.escape(said)):
        WeighingEnv(small_bank, rewards=rewards)
