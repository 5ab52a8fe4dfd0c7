"""Perfect weighing, for an agent that knows the truth.

`expert` is the paper's optimal action (Eq. 11) taken at every step. `solve` is the exact optimum of the decision
process by dynamic programming over (truth, value, step). The two differ: under the paper's constants it can pay to move
off the balance and back before ending, because the way back earns the guiding reward again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from libra_gym.errors import LibraError
from libra_gym.task import WeighingTask

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MOST_SITUATIONS = 10_000_000
"""Of a task that is solved; with nine actions their Q values take 360 MB."""


@dataclass(frozen=True)
class Weighings:
    """Weighings followed to their ends, one per truth."""

    truth: npt.NDArray[np.float64]
    value: Ints
    """What lay on the pan at the end, in ticks."""
    steps: Ints
    """How many actions were taken, `end` included."""
    returns: Floats
    """The discounted sum of rewards."""
    actions: Ints
    """(truths, max_steps), −1 after the end."""

    def balanced(self, tolerance: float = 0.0) -> npt.NDArray[np.bool_]:
        """Which weighings ended within the tolerance (in ticks)."""
        return np.abs(self.truth - self.value) <= tolerance


@dataclass(frozen=True)
class Optimum:
    """The exact solution: Q of every action for each truth, value and number of steps taken."""

    task: WeighingTask
    truth: npt.NDArray[np.float64]
    gamma: float
    q: npt.NDArray[np.float32]
    """(max_steps, truths, values, actions); illegal actions are −inf."""

    @property
    def returns(self) -> Floats:
        """The best return from an empty pan, per truth."""
        return self.q[0, :, 0].max(-1).astype(np.float64)

    def weighings(self) -> Weighings:
        """The weighings of an agent that follows the optimum."""
        rows = np.arange(len(self.truth))
        return _follow(self.task, self.truth, self.gamma, lambda value, step: self.q[step, rows, value].argmax(-1))


def expert(task: WeighingTask, truth: npt.ArrayLike | None = None, gamma: float = 0.9) -> Weighings:
    """The weighings of the greedy expert, for these truths in ticks (None: every whole value)."""
    truths = _truths(task, truth)
    return _follow(task, truths, gamma, lambda value, step: task.optimal(truths, value))


def solve(task: WeighingTask, truth: npt.ArrayLike | None = None, gamma: float = 0.9) -> Optimum:
    """The optimum of the task for these truths in ticks (None: every whole value), by backward induction."""
    truths = _truths(task, truth)
    values = np.arange(task.ceiling + 1)
    if (situations := task.max_steps * len(truths) * len(values)) > _MOST_SITUATIONS:
        raise LibraError(
            f"The task has {situations:,} situations, but at most {_MOST_SITUATIONS:,} can be; name fewer truths."
        )
    situation = np.broadcast_to(values, (len(truths), len(values)))
    legal = task.legal(values)  # (values, actions)
    after = task.place(values[:, None], np.arange(task.num_actions))  # (values, actions)
    ends = np.arange(task.num_actions) == task.end
    q = np.empty((task.max_steps, len(truths), len(values), task.num_actions), dtype=np.float32)
    for step in reversed(range(task.max_steps)):
        reward = task.all_rewards(truths[:, None] + 0 * situation, situation, np.full_like(situation, step))
        if step < task.max_steps - 1:
            best = q[step + 1].max(-1)  # (truths, values)
            reward = reward + gamma * np.where(ends, 0.0, best[:, after])
        q[step] = np.where(legal, reward, -np.inf)
    return Optimum(task, truths, gamma, q)


def _truths(task: WeighingTask, truth: npt.ArrayLike | None) -> npt.NDArray[np.float64]:
    return np.atleast_1d(np.asarray(np.arange(task.ceiling + 1) if truth is None else truth, dtype=np.float64))


def _follow(task: WeighingTask, truth: Floats, gamma: float, policy: object) -> Weighings:
    """Play a policy `(value, step) -> action` on every truth at once."""
    value = np.zeros(len(truth), dtype=np.int64)
    steps, returns = np.zeros_like(value), np.zeros(len(truth))
    actions = np.full((len(truth), task.max_steps), -1)
    live = np.ones(len(truth), dtype=np.bool_)
    for step in range(task.max_steps):
        action = policy(value, step)  # type: ignore[operator]
        outcome = task.outcome(truth, value, action, np.full_like(value, step))
        actions[live, step] = action[live]
        returns += np.where(live, gamma**step * outcome.reward, 0.0)
        value = np.where(live, outcome.value, value)
        steps += live
        live &= ~outcome.ended
    return Weighings(truth, value, steps, returns, actions)
