"""What LibraDQN refuses when it is made or loaded: settings that contradict each other, or that would do nothing."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
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
FIXED = ("average", "normalise")
"""What of a saved agent can no longer be changed."""
LOOKS_AHEAD = {"double": False, "mask_target": True, "syncs": 1}
"""Settings of the target network, and what they are where they say nothing."""


ELSEWHERE = ("train_freq", "gradient_steps", "target_update_interval", "exploration_fraction", "stats_window_size")
"""Settings of SB3's own loop, which the learner has no use for."""
ITS_NETWORK = ("features_extractor_class", "features_extractor_kwargs", "normalize_images")
"""Arguments of SB3's own policies, whose network is not the scale's."""


def check_settings(agent: LibraDQN) -> None:
    """Refuse settings that contradict each other, whether the constructor or `load` was given them."""
    if agent.quantile != 0.5 and agent.loss != "l1":
        raise LibraError(f"quantile is {agent.quantile}, but only the loss l1 has quantiles, not {agent.loss!r}.")
    if agent.huber_delta != 1.0 and agent.loss != "huber":
        raise LibraError(f"huber_delta is {agent.huber_delta}, but the loss is {agent.loss!r}; leave one of them out.")
    first, last = agent.exploration_initial_eps, agent.exploration_final_eps
    if last > first:
        raise LibraError(f"epsilon_end is {last}, but ε falls; it must be at most epsilon_start, {first}.")
    if agent.policy_kwargs.get("optimizer_class") is torch.optim.LBFGS:
        raise LibraError("LBFGS needs the loss several times for an update; take another optimizer_class.")
    if agent.batch_size > agent.buffer_size:
        raise LibraError(
            f"batch_size is {agent.batch_size}, but the buffer holds {agent.buffer_size} transitions; it must be at "
            "most buffer_size."
        )


def check_looks_ahead(agent: LibraDQN) -> None:
    """Refuse settings of the target network for an agent that does not look ahead."""
    if agent.gamma == 0.0 and agent.policy_kwargs.get("task") is not None:
        for name, usual in LOOKS_AHEAD.items():
            if getattr(agent, name) != usual:
                raise LibraError(
                    f"{name} is about later rewards, which gamma=0 leaves out; leave it out, or raise gamma."
                )


def check_on_scales(agent: LibraDQN, defaults: Mapping[str, inspect.Parameter]) -> None:
    """Refuse what would do nothing on the scales."""
    if agent.policy_kwargs.get("task") is None:
        return
    now = {name: getattr(agent, name if name != "stats_window_size" else "_stats_window_size") for name in ELSEWHERE}
    if isinstance(often := now["train_freq"], TrainFreq) and often.unit is TrainFrequencyUnit.STEP:
        now["train_freq"] = often.frequency
    changed = [name for name, value in now.items() if value != defaults[name].default]
    changed += [f"policy_kwargs[{name!r}]" for name in ITS_NETWORK if name in agent.policy_kwargs]
    if changed:
        raise LibraError(
            f"{changed[0]} is of SB3's own loop and networks, which are not used on the scales; leave it out (see "
            "update_every, syncs, epsilon_start and policy_kwargs={'network': ...})."
        )


def check_fixed(given: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Refuse to load an agent with another network than was saved: its average and its input's scale are in it."""
    if "average" in given and (given["average"] > 0) != (saved["average"] > 0):
        raise LibraError(
            f"average is {given['average']}, but the saved agent was made with {saved['average']}; one that keeps an "
            "average and one that keeps none cannot be exchanged."
        )
    if "normalise" in given and given["normalise"] != saved["normalise"]:
        raise LibraError(f"normalise is {saved['normalise']} in the saved agent, and its network has learnt with that.")


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
