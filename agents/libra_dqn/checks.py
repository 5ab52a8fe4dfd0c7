"""What LibraDQN refuses when it is made or loaded: settings that contradict each other, or that would do nothing."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stable_baselines3.common.vec_env import VecEnvWrapper

from agents.vec_env import WeighingVecEnv
from libra_gym.errors import LibraError

if TYPE_CHECKING:
    from agents.libra_dqn.algorithm import LibraDQN

ON_SCALES = (
    "update_every", "epsilon_step", "syncs", "easy_drop", "quantile", "mask_target", "backup", "average", "normalise",
    "calibrate",
)  # fmt: skip
"""Settings of the learner, which SB3's own loop has no use for."""


def check_settings(agent: LibraDQN) -> None:
    """Refuse settings that contradict each other, whether the constructor or `load` was given them."""
    if agent.quantile != 0.5 and agent.loss != "l1":
        raise LibraError(f"quantile is {agent.quantile}, but only the loss l1 has quantiles, not {agent.loss!r}.")
    first, last = agent.exploration_initial_eps, agent.exploration_final_eps
    if last > first:
        raise LibraError(f"epsilon_end is {last}, but ε falls; it must be at most epsilon_start, {first}.")
    if agent.batch_size > agent.buffer_size:
        raise LibraError(
            f"batch_size is {agent.batch_size}, but the buffer holds {agent.buffer_size} transitions; it must be at "
            "most buffer_size."
        )


def check_elsewhere(agent: LibraDQN, defaults: Mapping[str, inspect.Parameter]) -> None:
    """Off the scales LibraDQN is SB3's DQN: refuse what would do nothing there, and scales that a wrapper hides."""
    if isinstance(agent.env, VecEnvWrapper) and isinstance(agent.env.unwrapped, WeighingVecEnv):
        raise LibraError(
            "LibraDQN learns from the scales of agents.make_vec_env(...) themselves, which record episodes; a "
            f"{type(agent.env).__name__} round them would leave SB3's own loop. Leave it out, or take SB3's DQN."
        )
    changed = [name for name in ON_SCALES if getattr(agent, name) != defaults[name].default]
    if agent.policy_kwargs.get("network"):
        changed.append("policy_kwargs['network']")
    if changed and agent.env is not None:
        raise LibraError(
            f"{changed[0]} is for the scales of agents.make_vec_env(...); on other environments LibraDQN is SB3's DQN "
            "with another loss. Leave it out."
        )
