"""What the libraries' own checkers say of our environments: nothing."""

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check
from stable_baselines3.common.env_checker import check_env as sb3_check

import libra_gym  # noqa: F401 (registers the environments)

pytestmark = pytest.mark.filterwarnings("error")
IDS = ("LibraWeighing-v0", "LibraWeighingContinuous-v0")


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("render_mode", [None, "rgb_array", "ansi"])
def test_gymnasiums_checker_is_content(env_id, render_mode):
    """`None` as well: the checker itself makes one environment for each render mode that the metadata names."""
    gymnasium_check(gym.make(env_id, render_mode=render_mode).unwrapped)


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("settings", [{}, {"weight_encoding": "index"}, {"max_steps": 3}, {"order": "shuffled"}])
def test_stable_baselines_checker_is_content(env_id, settings):
    sb3_check(gym.make(env_id, **settings))


@pytest.mark.parametrize("env_id", IDS)
def test_stable_baselines_checker_renders(env_id):
    sb3_check(gym.make(env_id, render_mode="rgb_array"), skip_render_check=False)


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasiums_wrappers_stack_on_it(env_id):
    """Those that people put on an environment by habit."""
    env = gym.wrappers.RecordEpisodeStatistics(gym.wrappers.NormalizeReward(gym.make(env_id)))
    env.action_space.seed(0)
    env.reset(seed=0)
    finished = 0
    while finished < 20:
        *_, terminated, truncated, info = env.step(env.action_space.sample())
        assert not truncated
        if terminated:
            finished += 1
            assert 1 <= info["episode"]["l"] <= 8
            env.reset()
