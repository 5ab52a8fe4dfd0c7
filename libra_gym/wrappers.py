"""Wrappers: views of the observation for agents that want its parts apart, and the counts of whole photos."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from libra_gym.image_counts import ImageCounts

__all__ = ["DictView", "ImageCounts", "VectorDictView"]

Parts = dict[str, npt.NDArray[np.float32]]


class DictView(gym.ObservationWrapper[Parts, Any, npt.NDArray[np.float32]]):
    """The observation of one scale as `{"features": …, "weights": …}`."""

    def __init__(self, env: gym.Env[npt.NDArray[np.float32], Any]) -> None:
        super().__init__(env)
        self.observation_space = _parts_space(env)  # type: ignore[assignment]  # Dict is typed by Any

    def observation(self, observation: npt.NDArray[np.float32]) -> Parts:
        """Cut the flat observation in two."""
        return _parts(observation, self.unwrapped)


class VectorDictView(gym.vector.VectorObservationWrapper):
    """The observations of many scales as `{"features": …, "weights": …}`."""

    def __init__(self, env: gym.vector.VectorEnv) -> None:
        super().__init__(env)
        self.single_observation_space = _parts_space(env)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def observations(self, observations: npt.NDArray[np.float32]) -> Parts:
        """Cut the flat observations in two."""
        return _parts(observations, self.unwrapped)


def _channels(env: Any) -> int:
    return int(env.scales.bank.channels)


def _parts_space(env: Any) -> spaces.Dict:
    flat = getattr(env, "single_observation_space", None) or env.observation_space
    cut = _channels(env.unwrapped)
    return spaces.Dict(
        features=spaces.Box(flat.low[:cut], flat.high[:cut], dtype=np.float32),
        weights=spaces.Box(flat.low[cut:], flat.high[cut:], dtype=np.float32),
    )


def _parts(observation: npt.NDArray[np.float32], env: Any) -> Parts:
    cut = _channels(env)
    return {"features": observation[..., :cut], "weights": observation[..., cut:]}
