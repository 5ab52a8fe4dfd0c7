"""Thousands of scales for Stable-Baselines3: the native vector environment as an SB3 `VecEnv`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

import libra_gym
from libra_gym.envs import WeighingVectorEnv
from libra_gym.errors import LibraError

ENV_IDS = ("LibraWeighing-v0", "LibraWeighingContinuous-v0")


class WeighingVecEnv(VecEnv):
    """An SB3 `VecEnv` over one `WeighingVectorEnv` in SAME_STEP mode.

    Returns and lengths of episodes are in the `infos` of weighings that ended, as a `Monitor` would put them there, and
    with them what the environment's own infos hold; the infos of all others are empty.
    """

    def __init__(self, envs: WeighingVectorEnv) -> None:
        if envs.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise LibraError(f"Stable-Baselines3 needs autoreset_mode 'SameStep', not {envs.autoreset_mode.value!r}.")
        self.envs = envs
        self.render_mode = envs.render_mode
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        self.metadata["render_fps"] = envs.metadata["render_fps"]
        self._actions = np.zeros(envs.num_envs, dtype=np.int64)
        self._returns = np.zeros(envs.num_envs)
        self._start = time.time()

    @property
    def bank(self) -> libra_gym.FeatureBank:
        """The bank whose patches are weighed."""
        return self.envs.scales.bank

    @property
    def task(self) -> libra_gym.WeighingTask:
        """The task that is played."""
        return self.envs.scales.task

    def reset(self) -> VecEnvObs:
        """Put new patches on all scales, with the seeds and options that were set."""
        options = [option for option in self._options if option]
        if options:
            self._reset_options()  # or every later reset would fail as well
            raise LibraError(
                "Per-environment options are not supported; reset the vector environment itself with options."
            )
        seeded = any(seed is not None for seed in self._seeds)
        observations, _ = self.envs.reset(seed=self._seeds if seeded else None)
        self.reset_infos = [{} for _ in range(self.num_envs)]
        self._returns[:] = 0.0
        self._reset_seeds()
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Take the actions; finished scales take their next patch in the same step."""
        observations, rewards, ended, _, vector_infos = self.envs.step(self._actions)
        self._returns += rewards
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        done = np.flatnonzero(ended)
        if len(done):
            now = round(time.time() - self._start, 6)
            final = {name: values for name, values in vector_infos["final_info"].items() if name[0] != "_"}
            for i in done.tolist():
                infos[i] = {name: values[i] for name, values in final.items()} | {
                    "terminal_observation": vector_infos["final_obs"][i],
                    "TimeLimit.truncated": False,
                    "episode": {"r": float(self._returns[i]), "l": int(final["step"][i]), "t": now},
                }
            self._returns[done] = 0.0
        return observations, rewards.astype(np.float32), ended, infos

    def action_masks(self) -> np.ndarray:
        """Which actions are legal now, `(num_envs, actions)`."""
        return self.envs.action_masks()

    def close(self) -> None:
        """Release the environment."""
        self.envs.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """A picture of every scale."""
        return self.envs.render() or [None] * self.num_envs

    # The scales are rows of arrays, so that an attribute or method of "each environment" is one of the whole batch.

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """The attribute of the vector environment, once per index; spaces are those of one scale."""
        if attr_name in ("action_space", "observation_space"):
            attr_name = f"single_{attr_name}"
        return [getattr(self.envs, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the vector environment; it cannot differ between scales."""
        setattr(self.envs, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        """Call a method of the vector environment and deal its rows out to the indices."""
        if method_name in ("reset", "step"):
            raise LibraError(f"The scales {method_name} together; call {method_name}() of the VecEnv itself.")
        result = getattr(self.envs, method_name)(*args, **kwargs)
        chosen = list(self._get_indices(indices))
        per_scale = isinstance(result, np.ndarray | tuple | list) and len(result) == self.num_envs
        return [result[i] if per_scale else result for i in chosen]

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """True for `Monitor`, whose work is done here; False for all others."""
        return [wrapper_class is Monitor] * len(list(self._get_indices(indices)))


def make_vec_env(
    env_id: str = "LibraWeighing-v0", num_envs: int = 64, *, seed: int | None = None, **kwargs: Any
) -> WeighingVecEnv:
    """An SB3 `VecEnv` of `num_envs` scales; the keyword arguments are those of the environment.

    ```python
    from stable_baselines3 import PPO
    from agents import make_vec_env

    PPO("MlpPolicy", make_vec_env(num_envs=512)).learn(100_000)
    ```
    """
    try:
        envs = gym.make_vec(env_id, num_envs=num_envs, autoreset_mode=AutoresetMode.SAME_STEP.value, **kwargs)
    except TypeError:
        if env_id.rpartition(":")[2] in ENV_IDS:  # an argument that it does not know
            raise
        envs = None
    if envs is None or not isinstance(envs.unwrapped, WeighingVectorEnv):
        raise LibraError(f"{env_id!r} is not a weighing environment; use one of: {', '.join(ENV_IDS)}.")
    vec_env = WeighingVecEnv(envs.unwrapped)
    if seed is not None:
        vec_env.seed(seed)
    return vec_env
