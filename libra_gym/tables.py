"""The weighing task as look-up tables.

When the truth is a whole number of ticks within the scale's range, as intervals are, the task has so few situations
(truth × value × action, and whether the step is the last) that every outcome fits in one small table. A look-up is some
forty times faster than computing the reward anew, and on a GPU it is one kernel instead of thirty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from libra_gym.errors import LibraError
from libra_gym.task import Array, Outcome, WeighingTask


class TaskTables:
    """`WeighingTask.outcome`, `legal` and `all_rewards`, looked up instead of computed.

    Args:
        task: the task to tabulate; its truths must be whole ticks from 0 to the ceiling.
        device: a torch device for tensors, or None for numpy arrays.
    """

    def __init__(self, task: WeighingTask, device: torch.device | str | None = None) -> None:
        if task.tick != 1.0:
            raise LibraError(f"Only tasks on whole intervals fit in tables, but this one has ticks of {task.tick}.")
        self.task = task
        self.levels = task.ceiling + 1
        grid = np.arange(self.levels)
        truth, value = np.meshgrid(grid, grid, indexing="ij")
        early, last = (task.all_rewards(truth, value, np.full_like(value, t)) for t in (-1, task.max_steps - 1))
        as_array: Any = np.ascontiguousarray if device is None else lambda a: torch.from_numpy(a).to(device)
        self._rewards: Array = as_array(np.stack([early, last]).reshape(-1, task.num_actions))  # (2·C·C, A)
        self._flat: Array = self._rewards.reshape(-1)
        self._legal: Array = as_array(task.legal(grid))  # (C, A)
        self._places: Array = as_array(task.place(grid[:, None], np.arange(task.num_actions)).reshape(-1))  # (C·A)

    def outcome(self, truth: Array, value: Array, action: Array, step: Array) -> Outcome:
        """Value, reward and ending of one action."""
        last = step >= self.task.max_steps - 1
        situation = (last * self.levels + truth) * self.levels + value
        reward = self._flat.take(situation * self.task.num_actions + action)
        after = self._places.take(value * self.task.num_actions + action)
        return Outcome(after, reward, (action == self.task.end) | last)

    def all_rewards(self, truth: Array, value: Array, step: Array) -> Array:
        """The reward of every action, in a new last axis."""
        last = step >= self.task.max_steps - 1
        return self._rewards[(last * self.levels + truth) * self.levels + value]

    def legal(self, value: Array) -> Array:
        """Which actions keep the value in range, in a new last axis."""
        return self._legal[value]
