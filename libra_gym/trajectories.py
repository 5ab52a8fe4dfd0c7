"""What happened on the scale while patches were weighed, step by step: values, returns and the needle's readings.

The evaluator keeps only the actions (`Weighed`); all else follows from them, and is worked out here for pictures and
figures (Sec. 4.1 of the paper).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from libra_gym.bank import FeatureBank
from libra_gym.evaluation import Weighed
from libra_gym.metrics import Floats
from libra_gym.task import WeighingTask

Ints: TypeAlias = npt.NDArray[np.int64]
Needle: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Features and encoded weight vectors of patches → one number per action: Q values, or an imitator's logits."""

_BATCH = 8192


def true_values(bank: FeatureBank, task: WeighingTask) -> Floats:
    """What each patch weighs in ticks: a whole number on intervals, a real one on counts."""
    if task.tick == 1.0:
        return bank.intervals.cpu().numpy().astype(np.float64)
    return bank.counts.cpu().double().numpy() / task.tick


def values_before(actions: npt.NDArray[np.integer], task: WeighingTask) -> Ints:
    """What lay on the pan before each action and after the last, in ticks: `(patches, steps + 1)`.

    `actions` is `(patches, steps)` with −1 after the end, where the value no longer changes.
    """
    values = np.zeros((len(actions), actions.shape[1] + 1), dtype=np.int64)
    for step, action in enumerate(actions.T):
        placed = task.place(values[:, step], np.maximum(action, 0))
        values[:, step + 1] = np.where(action >= 0, placed, values[:, step])
    return values


@torch.inference_mode()
def read_needle(needle: Needle, bank: FeatureBank, task: WeighingTask, weighed: Weighed, patches: Ints) -> Floats:
    """What the needle said of these patches before each action, `(patches, steps, actions)`; NaN after the end."""
    actions = weighed.actions[patches]
    readings = np.full((*actions.shape, task.num_actions), np.nan)
    for start in range(0, len(patches), _BATCH):
        index = np.arange(start, min(start + _BATCH, len(patches)))
        features = bank.gather(torch.from_numpy(patches[index]).to(bank.device))
        history = torch.from_numpy(actions[index].astype(np.int64) + 1)
        for step in range(actions.shape[1]):
            live = np.flatnonzero(actions[index, step] >= 0)
            so_far = history[live]
            so_far[:, step:] = 0
            weights = task.encode(so_far).to(features.device)
            readings[index[live], step] = needle(features[live], weights).float().cpu().numpy()
    return readings


def returns_to_go(weighed: Weighed, bank: FeatureBank, task: WeighingTask, gamma: float) -> Floats:
    """The discounted rewards from each action to the end, which its Q value should foretell: `(patches, steps)`.

    NaN after the end.
    """
    actions = weighed.actions
    values, truth = values_before(actions, task), true_values(bank, task)
    if task.tick == 1.0:
        truth = truth.astype(np.int64)
    returns = np.full(actions.shape, np.nan)
    to_come = np.zeros(len(actions))
    for step in reversed(range(actions.shape[1])):
        live = np.flatnonzero(actions[:, step] >= 0)
        reward = task.reward(truth[live], values[live, step], actions[live, step], np.full(len(live), step))
        to_come[live] = reward + gamma * to_come[live]
        returns[live, step] = to_come[live]
    return returns
