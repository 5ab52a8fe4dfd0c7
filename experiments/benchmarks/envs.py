"""How fast the scales are: the native batch against one Python object per scale, and against the memory's own speed.

A step must hand out fresh observations, so that its floor is the time to copy their bytes at the speed of the machine's
memory, which is measured beside it on arrays too large for its caches. Environments are in Gymnasium's default mode of
autoreset, NEXT_STEP; `env_copy_limit_ratio_same_step_…` is the mode that Stable-Baselines3 uses, which hands out the
last observations of finished weighings too. Ratios to Python objects at more than 512 are scaled up from 512.
"""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import DummyVecEnv

import libra_gym  # noqa: F401 (registers the environments)
from experiments.benchmarks import BenchOptions, seconds

SIZES = (64, 512, 4096, 8192)
RATIOS_UP_TO = 512
"""Larger batches of Python objects take minutes and tell nothing new; their rate does not depend on the number."""
ID = "LibraWeighing-v0"


def run(options: BenchOptions) -> dict[str, float]:
    """Steps per second, ratios to SyncVectorEnv and DummyVecEnv, and the ratio to the copying limit."""
    results: dict[str, float] = {}
    for number in SIZES:
        native = _native(number)
        results[f"env_steps_per_s_{number}"] = number / native
        limit = _copy(number)
        results[f"env_copy_limit_ratio_{number}"] = native / limit
        results[f"env_copy_limit_ratio_same_step_{number}"] = _native(number, AutoresetMode.SAME_STEP) / limit
        rates = (_sync(min(number, RATIOS_UP_TO)), _dummy(min(number, RATIOS_UP_TO)))
        for name, per_step in zip(("sync", "dummy"), rates):
            results[f"env_vs_{name}_{number}"] = per_step * max(number / RATIOS_UP_TO, 1.0) / native
    return results


def _native(number: int, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> float:
    envs = gym.make_vec(ID, num_envs=number, autoreset_mode=mode)
    envs.reset(seed=0)
    return seconds(_player(envs.step, number), repeats=200)


def _sync(number: int) -> float:
    envs = gym.make_vec(ID, num_envs=number, vectorization_mode="sync")
    envs.reset(seed=0)
    return seconds(_player(envs.step, number), repeats=10, warm_up=1)


def _dummy(number: int) -> float:
    envs = DummyVecEnv([lambda: gym.make(ID)] * number)
    envs.reset()
    return seconds(_player(envs.step, number), repeats=10, warm_up=1)


def _player(step: Callable[[np.ndarray], object], number: int) -> Callable[[], object]:
    """One step with uniformly random actions; they are drawn beforehand."""
    actions = iter(np.random.default_rng(0).integers(0, 9, size=(300, number)))
    return lambda: step(next(actions))


def _copy(number: int) -> float:
    """Seconds to copy the bytes of so many observations."""
    source = np.ones(1 << 26, dtype=np.float32)
    target = np.zeros_like(source)
    return seconds(lambda: np.copyto(target, source), repeats=7, warm_up=1) * number * 520 / len(source)
