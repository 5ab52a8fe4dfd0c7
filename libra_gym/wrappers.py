"""Wrappers: views of the observation for agents that want its parts apart, and the counts of whole photos."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from libra_gym.envs.scales import Parts, cut_in_two
from libra_gym.errors import LibraError
from libra_gym.image_counts import ImageCounts

__all__ = ["DictView", "ImageCounts", "VectorDictView"]


class DictView(gym.ObservationWrapper[Parts, Any, npt.NDArray[np.float32]], gym.utils.RecordConstructorArgs):
    """The observation of one scale as `{"features": …, "weights": …}`."""

    def __init__(self, env: gym.Env[npt.NDArray[np.float32], Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        self._cut, self.observation_space = _parts_space(env, env.observation_space)  # type: ignore[assignment]

    def observation(self, observation: npt.NDArray[np.float32]) -> Parts:
        """Cut the flat observation in two."""
        return cut_in_two(observation, self._cut)


class VectorDictView(gym.vector.VectorWrapper):
    """The observations of many scales as `{"features": …, "weights": …}`, in each of the autoreset modes."""

    def __init__(self, env: gym.vector.VectorEnv) -> None:
        super().__init__(env)
        self._cut, self.single_observation_space = _parts_space(env, env.single_observation_space)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Parts, dict[str, Any]]:
        """As the environment's, with the observations cut in two."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return cut_in_two(observations, self._cut), infos

    def step(self, actions: Any) -> tuple[Parts, Any, Any, Any, dict[str, Any]]:
        """As the environment's, with the observations, those of finished episodes among them, cut in two."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        if "final_obs" in infos:
            last = infos["final_obs"].copy()
            for scale in np.flatnonzero(infos["_final_obs"]).tolist():
                last[scale] = cut_in_two(last[scale], self._cut)
            infos = {**infos, "final_obs": last}
        return cut_in_two(observations, self._cut), rewards, terminated, truncated, infos


def _parts_space(env: Any, flat: spaces.Space[Any]) -> tuple[int, spaces.Dict]:
    """How many features there are, and the space of the parts."""
    scales = env.unwrapped.scales
    cut, size = int(scales.bank.channels), scales.bank.channels + scales.task.max_steps
    if not isinstance(flat, spaces.Box) or flat.shape != (size,):
        raise LibraError(
            f"A dict view is of a scale's own observations, {size} numbers in a row, and not of {flat}; put it on "
            "before other wrappers of observations."
        )
    parts = spaces.Dict(
        features=spaces.Box(flat.low[:cut], flat.high[:cut], dtype=np.float32),
        weights=spaces.Box(flat.low[cut:], flat.high[cut:], dtype=np.float32),
    )
    return cut, parts
