"""Many scales as one native `gymnasium.vector.VectorEnv`: a batch of arrays, no environment objects in a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from libra_gym.envs.order import Order
from libra_gym.envs.scales import BankSource, Scales, Weighed, open_task
from libra_gym.envs.single import check_render_mode, own_seed, render_scale
from libra_gym.errors import LibraError
from libra_gym.task import Rewards, WeightEncoding

Bools = npt.NDArray[np.bool_]
StepResult = tuple[npt.NDArray[np.float32], npt.NDArray[np.float64], Bools, Bools, dict[str, Any]]


class WeighingVectorEnv(VectorEnv[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[Any]]):
    """`num_envs` patches weighed side by side; see `WeighingEnv` for the task.

    It behaves, step for step, like Gymnasium's `SyncVectorEnv` around as many `WeighingEnv`s with the same seeds, in
    each of the three autoreset modes. Only the epoch-wise orders differ, on purpose: here all scales share one pass
    through the bank, so that an epoch shows each patch once in all.

    Args:
        num_envs: how many patches to weigh at once.
        autoreset_mode: `NEXT_STEP` (Gymnasium's default), `SAME_STEP` (what Stable-Baselines3 means) or `DISABLED`, as
            an `AutoresetMode` or its value.
        bank, split, rewards, max_steps, weight_encoding, order, render_mode: as for `WeighingEnv`.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 2}  # noqa: RUF012
    weighed: ClassVar[Weighed] = "interval"

    def __init__(
        self,
        num_envs: int = 1,
        bank: BankSource = "demo",
        split: str | None = "train",
        rewards: Rewards | Mapping[str, Any] | None = None,
        max_steps: int = 8,
        weight_encoding: WeightEncoding = "value",
        order: Order = "random",
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        check_render_mode(render_mode, self.metadata["render_modes"])
        opened, task = open_task(
            bank, split, self.weighed, rewards=rewards, max_steps=max_steps, weight_encoding=weight_encoding
        )
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.scales = Scales(opened, task, num_envs, order)
        self.single_observation_space = self.scales.observation_space
        self.single_action_space = self.scales.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.needle: npt.ArrayLike | None = None
        self._unseeded = np.ones(num_envs, dtype=np.bool_)
        self._ended = np.ones(num_envs, dtype=np.bool_)
        self._rewards = np.zeros(num_envs)
        self._present = np.ones(num_envs, dtype=np.bool_)

    @property
    def epoch(self) -> int:
        """How many times as many patches as the bank has were handed out before the last; passes, if in an order."""
        return self.scales.order.epoch

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Put new patches on all scales, or on those that `options["reset_mask"]` marks.

        `seed` is one number (scale i gets seed + i) or one per scale; `options["patch"]` names the patches: one for
        all, one per scale, or one for each scale that is reset.
        """
        options = options or {}
        which = self._reset_mask(options)
        everything = bool(which.all())
        patches = options.get("patch")
        if not everything and patches is not None and np.shape(patches) == (self.num_envs,):
            patches = np.asarray(patches)[which]
        if patches is not None:  # before anything is changed
            patches = self.scales.check_patches(patches, int(which.sum()))
        self._seed(seed, which)
        self.scales.load(None if everything else np.flatnonzero(which), patches)
        self._ended[which] = False
        self._rewards[which] = 0.0
        self.needle = None
        return self.scales.observe(), self._info(which)

    def step(self, actions: npt.NDArray[np.int64]) -> StepResult:
        """Take one action on every scale."""
        if self._unseeded.any():
            first = int(np.flatnonzero(self._unseeded)[0])
            raise gym.error.ResetNeeded(f"Scale {first} has no patch yet; call reset() before step().")
        if self.autoreset_mode is AutoresetMode.NEXT_STEP and self._ended.any():
            return self._step_and_reload(actions)
        if self._ended.any():
            first = int(np.flatnonzero(self._ended)[0])
            raise gym.error.ResetNeeded(
                f"The weighing on scale {first} has ended; reset it with options={{'reset_mask': …}} first."
            )
        self._rewards, ended = self.scales.act(actions)
        infos: dict[str, Any] = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP and ended.any():
            done = np.flatnonzero(ended)
            infos = {"final_obs": _rows(self.scales.observe(done), done, self.num_envs), "_final_obs": ended}
            infos |= {"final_info": self._info(ended), "_final_info": ended}
            self.scales.load(done)
        else:
            self._ended = ended
        return self._result(ended, infos)

    def _step_and_reload(self, actions: npt.NDArray[np.int64]) -> StepResult:
        """NEXT_STEP with scales that ended before: those take a new patch instead of their action."""
        live = np.flatnonzero(~self._ended)
        chosen = np.asarray(actions)
        if chosen.shape != (self.num_envs,):
            raise LibraError(f"Actions must be {self.num_envs} whole numbers, not of shape {chosen.shape}.")
        rewards, ended = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.bool_)
        if len(live):
            rewards[live], ended[live] = self.scales.act(chosen[live], live)
        self.scales.load(np.flatnonzero(self._ended))
        self._rewards, self._ended = rewards, ended
        return self._result(ended, {})

    def action_masks(self) -> Bools:
        """Which actions are legal now, `(num_envs, actions)`."""
        return self.scales.action_masks()

    def render(self) -> tuple[Any, ...] | None:
        """Every scale as a picture (`rgb_array`) or as text (`ansi`)."""
        if self.render_mode is None:
            gym.logger.warn("render() does nothing without a render_mode; pass render_mode='rgb_array' or 'ansi'.")
            return None
        needles = [None] * self.num_envs if self.needle is None else np.asarray(self.needle)
        return tuple(
            render_scale(self.scales, i, self.render_mode, needles[i], float(self._rewards[i]), bool(self._ended[i]))
            for i in range(self.num_envs)
        )

    # ---------------------------------------------------------------------------------------------------- helpers

    def _seed(self, seed: int | Sequence[int | None] | None, which: Bools) -> None:
        new = self._unseeded & which
        if seed is None and not new.any():
            return
        # Scales that get their first patch later than others go on with the epoch that was begun.
        epochs = seed is not None or bool(self._unseeded.all())
        if seed is None or isinstance(seed, int | np.integer):
            super().reset(seed=None if seed is None else int(seed))
            first = own_seed(self)
            seeds: list[int | None] = [first + i if seed is not None or new[i] else None for i in range(self.num_envs)]
        else:
            seeds = [None if own is None else int(own) for own in seed]
            if len(seeds) != self.num_envs:
                raise LibraError(f"There are {len(seeds)} seeds for {self.num_envs} environments; give one for each.")
            if any(own is not None and own < 0 for own in seeds):
                raise LibraError(f"A seed must not be negative; got {min(own for own in seeds if own is not None)}.")
        if any(own is None and new[i] for i, own in enumerate(seeds)):  # as an environment by itself would
            drawn = np.random.SeedSequence().generate_state(self.num_envs, np.uint64) >> np.uint64(1)
            seeds = [int(drawn[i]) if own is None and new[i] else own for i, own in enumerate(seeds)]
        chosen = [(i, seed) for i, seed in enumerate(seeds) if which[i] and seed is not None]
        scales = np.array([i for i, _ in chosen], dtype=np.intp)
        self.scales.order.seed([seed for _, seed in chosen], scales, epochs=epochs)
        self._unseeded &= ~which

    def _reset_mask(self, options: dict[str, Any]) -> Bools:
        if "reset_mask" not in options:
            return np.ones(self.num_envs, dtype=np.bool_)
        mask = options["reset_mask"]
        if (
            not isinstance(mask, np.ndarray)
            or mask.dtype != np.bool_
            or mask.shape != (self.num_envs,)
            or not mask.any()
        ):
            raise LibraError(
                f"options['reset_mask'] must be a boolean array of shape ({self.num_envs},) with at least one True, "
                f"not {mask!r}."
            )
        return mask

    def _info(self, which: Bools) -> dict[str, Any]:
        """Gymnasium's vector form of an info: each array with a mask of the environments it speaks of, 0 elsewhere."""
        infos: dict[str, Any] = {}
        if which.all():
            arrays = self.scales.info()
        else:
            rows = np.flatnonzero(which)
            arrays = {key: _scatter(array, rows, self.num_envs) for key, array in self.scales.info(rows).items()}
        for key, array in arrays.items():
            infos[key], infos[f"_{key}"] = array, which.copy()
        return infos

    def _result(self, ended: Bools, infos: dict[str, Any]) -> StepResult:
        infos |= self._info(self._present)
        truncated = np.zeros(self.num_envs, dtype=np.bool_)
        return self.scales.observe(), self._rewards.copy(), ended.copy(), truncated, infos


class WeighingContinuousVectorEnv(WeighingVectorEnv):
    """`num_envs` patches weighed side by side to a hundredth of a person; see `WeighingContinuousEnv`."""

    weighed: ClassVar[Weighed] = "count"


def _autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = ", ".join(repr(m.value) for m in AutoresetMode)
        raise LibraError(f"autoreset_mode is {mode!r}, but it must be one of: {known}.") from None


def _scatter(array: npt.NDArray[Any], rows: npt.NDArray[np.intp], number: int) -> npt.NDArray[Any]:
    """Values for some scales among zeros for the others."""
    everywhere = np.zeros((number, *array.shape[1:]), dtype=array.dtype)
    everywhere[rows] = array
    return everywhere


def _rows(observations: npt.NDArray[np.float32], which: npt.NDArray[np.intp], number: int) -> npt.NDArray[Any]:
    """Final observations as Gymnasium wants them: an object array with None where nothing ended."""
    rows = np.full(number, None, dtype=object)
    for i, row in zip(which.tolist(), observations):
        rows[i] = row
    return rows
