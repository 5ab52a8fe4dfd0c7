"""A row of scales: the state that the single and the vector environment share.

One `Scales` object weighs any number of patches side by side. It owns the state (patch, value, step, weight vector) and
the observation, and asks `WeighingTask` for everything that is physics.
"""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from libra_gym.bank import FeatureBank
from libra_gym.banks import load_bank
from libra_gym.envs.order import Order, PatchOrder
from libra_gym.errors import LibraError
from libra_gym.tables import TaskTables
from libra_gym.task import Rewards, WeighingTask, WeightEncoding

Weighed: TypeAlias = Literal["interval", "count"]
BankSource: TypeAlias = str | os.PathLike[str] | FeatureBank
"""A bank, the path of one, or a name such as `demo`."""
Index: TypeAlias = npt.NDArray[np.intp]
Parts: TypeAlias = dict[str, npt.NDArray[np.float32]]

FEATURE_BOUND = 65504.0
"""The largest half-precision number. Features are bounded by it, so that all banks share one observation space."""


IN_MEMORY_UP_TO = 2 * 1024**3
LAID_OUT_FROM = 32
"""Of a bank for at least so many scales, whose observations take no more bytes than this, they are laid out in memory
at the first action: agents that learn from the bank itself never take one. All else is read step by step; for a few
scales, of which there may be one in each of many processes, that is as fast."""


def open_task(
    bank: BankSource,
    split: str | None,
    weighed: Weighed,
    *,
    rewards: Rewards | Mapping[str, Any] | None,
    max_steps: int,
    weight_encoding: WeightEncoding,
) -> tuple[FeatureBank, WeighingTask]:
    """The bank that an environment's arguments name, and the task on it."""
    if not isinstance(split, str | None):
        raise LibraError(f"split is {split!r}, but it must be a name such as 'train', names joined by '+', or None.")
    if isinstance(bank, str | os.PathLike):
        bank = load_bank(os.fspath(bank), split)
    elif not isinstance(bank, FeatureBank):
        raise LibraError(f"bank is {bank!r}, but it must be a FeatureBank, the path of one, or a name such as 'demo'.")
    elif split is not None:
        bank = bank.split(split)
    settings: dict[str, Any] = {"max_steps": max_steps, "weight_encoding": weight_encoding}
    if weighed == "interval":
        task = WeighingTask.intervals(bank.num_intervals, people=bank.quantizer.values, **settings)
    else:
        task = WeighingTask.counts(bank.fullest, **settings)
    if not isinstance(rewards, Rewards | Mapping | None):
        raise LibraError(f"rewards is {rewards!r}, but it must be a Rewards, or a dict of its settings.")
    if isinstance(rewards, Rewards):
        task = replace(task, rewards=rewards)
    else:
        try:
            task = task.with_rewards(**(rewards or {}))
        except TypeError:
            known = ", ".join(vars(Rewards()))
            raise LibraError(f"rewards is {dict(rewards or {})!r}, but its keys must be among: {known}.") from None
    task.rewards.refuse_idle()
    return bank, task


def cut_in_two(observation: npt.NDArray[np.float32], channels: int) -> Parts:
    """Features and weights of a flat observation, or of many."""
    return {"features": observation[..., :channels], "weights": observation[..., channels:]}


class Scales:
    """The state of `number` scales on one bank."""

    def __init__(self, bank: FeatureBank, task: WeighingTask, number: int, order: Order) -> None:
        if not isinstance(number, int | np.integer) or number < 1:
            raise LibraError(f"num_envs is {number!r}, but it must be a whole number of at least 1.")
        self.bank, self.task, self.number = bank, task, number
        self.order = PatchOrder(order, len(bank), number)
        self.tables = TaskTables(task) if task.tick == 1.0 else task
        truth = bank.intervals if task.tick == 1.0 else bank.counts.double() / task.tick
        self._truths = truth.cpu().numpy()
        self._counts = bank.counts.cpu().numpy().astype(np.float64)
        self.patch = np.zeros(number, dtype=np.int64)
        self.value = np.zeros(number, dtype=np.int64)
        self.step = np.zeros(number, dtype=np.int64)
        self.truth = self._truths[self.patch]
        self.history = np.zeros((number, task.max_steps), dtype=np.uint8)  # action + 1; 0 is empty
        self._weights = np.zeros((number, task.max_steps), dtype=np.float32)
        size = len(bank) * (bank.channels + task.max_steps) * 4
        self._lays_out = number >= LAID_OUT_FROM and size <= IN_MEMORY_UP_TO
        self._rows: torch.Tensor | None = None
        self._codes = task.encode(np.arange(task.num_actions + 1))
        self._all = np.arange(number)

    def __deepcopy__(self, memo: dict[int, Any]) -> Scales:
        """A row of scales in the same state; what never changes, such as the features, is shared."""
        fixed = ("bank", "task", "tables", "_truths", "_counts", "_rows", "_codes", "_all")
        twin = object.__new__(type(self))
        for name, value in vars(self).items():
            setattr(twin, name, value if name in fixed else copy.deepcopy(value, memo))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """All but the observations that were laid out, which another process makes from the features again."""
        return vars(self) | {"_rows": None}

    @property
    def observation_space(self) -> spaces.Box[np.float32]:
        """One scale's observation: the patch's features, then the weight vector."""
        low, high = self.task.weight_bounds
        channels, steps = self.bank.channels, self.task.max_steps
        return spaces.Box(
            np.concatenate([np.full(channels, -FEATURE_BOUND), np.full(steps, low)]).astype(np.float32),
            np.concatenate([np.full(channels, FEATURE_BOUND), np.full(steps, high)]).astype(np.float32),
            dtype=np.float32,
        )

    @property
    def action_space(self) -> spaces.Discrete:
        """One scale's actions: the weights, then `end`."""
        return spaces.Discrete(self.task.num_actions)

    # -------------------------------------------------------------------------------------------------- weighing

    def load(self, scales: Index | None = None, patches: npt.ArrayLike | None = None) -> None:
        """Clear the pans of these scales (None: all) and put new patches on: the given ones, or the next in order."""
        which: Any = self._all if scales is None else scales
        if len(which) == 0:
            return
        chosen = self.order.draw(which) if patches is None else self.check_patches(patches, len(which))
        index: Any = slice(None) if scales is None else which
        self.patch[index] = chosen
        self.truth[index] = self._truths[chosen]
        self.value[index] = 0
        self.step[index] = 0
        self.history[index] = 0
        self._weights[index] = 0.0

    def act(self, actions: Any, scales: Index | None = None) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Take one action on each of these scales (None: all) and return their rewards and whether they are done."""
        chosen = self._check_actions(actions, self.number if scales is None else len(scales))
        if self._rows is None and self._lays_out:
            self._rows = _observation_rows(self.bank, self.task.max_steps)
        index: Any = slice(None) if scales is None else scales
        rows = self._all if scales is None else scales
        step = self.step[index]
        value, reward, ended = self.tables.outcome(self.truth[index], self.value[index], chosen, step)
        self.value[index] = value
        self.history[rows, step] = chosen + 1
        self._weights[rows, step] = self._codes[chosen + 1]
        self.step[index] = step + 1
        return reward.astype(np.float64), ended

    # ---------------------------------------------------------------------------------------------------- reading

    def observe(self, scales: Index | None = None) -> npt.NDArray[np.float32]:
        """A fresh copy of the observations of these scales (None: all)."""
        index: Any = slice(None) if scales is None else scales
        patch = self.patch[index]
        if self._rows is not None:
            observation = torch.index_select(self._rows, 0, torch.from_numpy(patch)).numpy()  # on all cores
        else:
            observation = np.empty((len(patch), self.bank.channels + self.task.max_steps), dtype=np.float32)
            rows = _bounded(self.bank, self.bank.gather(torch.from_numpy(patch).to(self.bank.device)))
            observation[:, : self.bank.channels] = rows.cpu().numpy()
        observation[:, self.bank.channels :] = self._weights[index]
        return observation

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal on each scale."""
        return self.tables.legal(self.value)

    def info(self, scales: Index | None = None) -> dict[str, npt.NDArray[Any]]:
        """What an agent may know besides the observation, and what it must not (`privileged_…`), per scale."""
        index: Any = slice(None) if scales is None else scales
        value, patch = self.value[index], self.patch[index]
        return {
            "action_mask": self.tables.legal(value).view(np.int8),
            "value": value * self.task.tick,
            "step": self.step[index].copy(),
            "patch": patch.copy(),
            "privileged_truth": self.truth[index] * self.task.tick,
            "privileged_count": self._counts[patch],
        }

    # --------------------------------------------------------------------------------------------------- checking

    def _check_actions(self, actions: Any, number: int) -> npt.NDArray[np.int64]:
        try:
            chosen = np.asarray(actions)
        except ValueError:  # of a sequence whose parts have several lengths, such as what SB3's `predict` returns
            raise LibraError(
                f"Actions must be {number} whole numbers, not a {type(actions).__name__} of arrays."
            ) from None
        if chosen.shape != (number,) or chosen.dtype.kind not in "iu":
            raise LibraError(f"Actions must be {number} whole numbers, not {chosen.dtype} of shape {chosen.shape}.")
        if chosen.min() < 0 or chosen.max() >= self.task.num_actions:
            bad = chosen[(chosen < 0) | (chosen >= self.task.num_actions)][0]
            raise LibraError(f"Action {bad} is out of range; it must be from 0 to {self.task.num_actions - 1}.")
        return chosen.astype(np.int64, copy=False)

    def check_patches(self, patches: npt.ArrayLike, number: int) -> npt.NDArray[np.int64]:
        """The patches that were asked for, one for each of so many scales, if they are in the bank."""
        given = np.asarray(patches)
        if given.dtype.kind not in "iu" or given.shape not in ((), (number,)):
            raise LibraError(
                f"Patches must be one whole number or {number} of them, not {given.dtype} of shape {given.shape}."
            )
        chosen = np.broadcast_to(given.astype(np.int64), (number,))
        if chosen.min() < 0 or chosen.max() >= len(self.bank):
            bad = chosen[(chosen < 0) | (chosen >= len(self.bank))][0]
            raise LibraError(
                f"Patch {bad} is not in bank {self.bank.name!r}; it must be from 0 to {len(self.bank) - 1}."
            )
        return chosen.copy()


_ROWS: dict[tuple[int, int], torch.Tensor] = {}
"""By the identity of a bank's features, and steps; an entry goes when the features go."""


def _observation_rows(bank: FeatureBank, steps: int) -> torch.Tensor:
    """Each patch's observation with an empty pan, so that one copy of a row makes an observation.

    All environments on the same features share the rows, whatever their quantizer.
    """
    key = id(bank.features), steps
    if key not in _ROWS:
        rows = torch.zeros(len(bank), bank.channels + steps, dtype=torch.float32, device="cpu")
        rows[:, : bank.channels] = _bounded(bank, bank.features[:])
        _ROWS[key] = rows
        weakref.finalize(bank.features, _ROWS.pop, key, None)
    return _ROWS[key]


def _bounded(bank: FeatureBank, features: torch.Tensor) -> torch.Tensor:
    """These features of a bank, if they are within the bounds of the observation space; halves always are."""
    if bank.features.dtype != torch.float16 and len(features) and features.abs().max() > FEATURE_BOUND:
        raise LibraError(
            f"Bank {bank.name!r} has features beyond ±{FEATURE_BOUND:,.0f}, the bounds of the observation space; scale "
            "its features, or take a backbone with smaller ones."
        )
    return features
