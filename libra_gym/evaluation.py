"""Policy → weighings → counts → figures (Sec. 3 of the paper, Appendix A for the way from intervals to counts).

Any policy can be judged: one with a batched `weigh` of its own, one with Stable-Baselines3's `predict`, or a function
from observations to actions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from libra_gym.bank import FeatureBank
from libra_gym.envs.scales import Scales, cut_in_two
from libra_gym.errors import LibraError
from libra_gym.metrics import Floats, Score, score
from libra_gym.oracle import solve
from libra_gym.quantizer import Quantizer
from libra_gym.quantizer import Readout as NamedReadout
from libra_gym.tables import TaskTables
from libra_gym.task import WeighingTask

Readout: TypeAlias = NamedReadout | Sequence[float] | Floats
"""What a patch weighed as interval c counts for.

`mean`: the values of the bank's quantizer, which are the means of the training patches unless it was given others;
`middle`: the middles of the appendix's intervals; or the values themselves, one per interval.
"""


@dataclass(frozen=True)
class Weighed:
    """Every patch of a bank, weighed."""

    value: npt.NDArray[np.int64]
    """What lay on the pan at the end, in ticks, `(patches,)`."""
    steps: npt.NDArray[np.int64]
    """How many actions were taken, `end` included, `(patches,)`."""
    actions: npt.NDArray[np.int8]
    """`(patches, max_steps)`, −1 after the end."""
    forced: npt.NDArray[np.bool_]
    """Where the steps ran out before `end` was said, `(patches,)`."""


class Weigher(Protocol):
    """A policy with a fast path of its own through a whole bank."""

    def weigh(self, bank: FeatureBank, task: WeighingTask) -> Weighed:
        """Weigh all patches without exploring."""
        ...


class Predictor(Protocol):
    """A Stable-Baselines3 algorithm or policy, or anything that answers like one.

    If its `predict` takes `action_masks`, as sb3-contrib's maskable algorithms do, it is told the legal actions.
    """

    def predict(self, observation: npt.NDArray[np.float32], *, deterministic: bool = ...) -> tuple[Any, Any]:
        """Actions for a batch of observations, and a state that must be None."""
        ...


Policy: TypeAlias = Weigher | Predictor | Callable[..., Any]
"""A `Weigher`, a `Predictor`, or a function `observations -> actions`, which may take `action_masks` too."""


@dataclass(frozen=True)
class Evaluation(Score):
    """The error of the counts, and how they came about."""

    mean_steps: float
    """Actions per patch, `end` included."""
    forced: float
    """The share of patches whose steps ran out before `end` was said."""
    mean_return: float
    """The discounted sum of rewards per patch."""
    regret: float | None
    """How much more the optimum (`libra_gym.oracle.solve`), which knows the truth, earns per patch by legal actions.

    None when real-valued counts are weighed: they have too many situations to be solved.
    """

    def _rows(self) -> list[tuple[str, str]]:
        return [
            *super()._rows(),
            ("steps per patch", f"{self.mean_steps:.2f}"),
            ("forced endings", f"{self.forced:.1%}"),
            ("return per patch", f"{self.mean_return:.2f}"),
            ("regret against the oracle", "–" if self.regret is None else f"{self.regret:.2f}"),
        ]


def evaluate(
    policy: Policy,
    bank: FeatureBank,
    *,
    task: WeighingTask | None = None,
    readout: Readout = "mean",
    gamma: float = 0.9,
    batch: int = 8192,
) -> Evaluation:
    """Weigh every patch of a bank without exploring, and judge the counts of its images.

    Args:
        policy: who weighs.
        bank: what is weighed.
        task: the scale (None: the paper's, on the bank's intervals).
        readout: how an interval becomes a count; real-valued counts are read as they are and know only `mean`.
        gamma: the discount of returns and regret.
        batch: how many patches are weighed side by side, unless the policy has its own `weigh`.
    """
    task = task or WeighingTask.intervals(bank.num_intervals)
    weighed = weigh(policy, bank, task, batch=batch)
    on_intervals = task.tick == 1.0
    counts = counts_of(weighed.value, task, bank, readout)
    figures = vars(score(counts, bank, intervals=weighed.value if on_intervals else None))
    if not on_intervals:
        figures = {**figures, "interval_accuracy": None}
    mean_return = float(_returns(weighed, bank, task, gamma).mean())
    best = _best_returns(task, gamma)[bank.intervals.cpu().numpy()].mean() if on_intervals else None
    return Evaluation(
        **figures,
        mean_steps=float(weighed.steps.mean()),
        forced=float(weighed.forced.mean()),
        mean_return=mean_return,
        regret=None if best is None else float(best) - mean_return,
    )


@lru_cache(maxsize=16)
def _best_returns(task: WeighingTask, gamma: float) -> Floats:
    """The oracle's return for each interval; the same scale is judged epoch after epoch."""
    return solve(task, gamma=gamma).returns


def weigh(policy: Policy, bank: FeatureBank, task: WeighingTask, *, batch: int = 8192) -> Weighed:
    """Weigh every patch of a bank without exploring, `batch` patches side by side; those that ended leave the batch."""
    if task.tick == 1.0 and task.ceiling != bank.num_intervals - 1:
        raise LibraError(
            f"The task weighs 0 to {task.ceiling}, but bank {bank.name!r} has {bank.num_intervals} intervals; give it "
            "the quantizer that the policy was trained with."
        )
    if batch < 1:
        raise LibraError(f"batch is {batch}, but at least 1 patch must be weighed at once.")
    if hasattr(policy, "weigh"):
        return cast(Weigher, policy).weigh(bank, task)

    choose = _chooser(policy, bank.channels)
    scales = Scales(bank, task, min(batch, len(bank)), "sequential")
    value, steps = np.empty(len(bank), dtype=np.int64), np.empty(len(bank), dtype=np.int64)
    actions = np.empty((len(bank), task.max_steps), dtype=np.int8)
    for start in range(0, len(bank), scales.number):
        patches = slice(start, min(start + scales.number, len(bank)))
        used = patches.stop - start
        live = np.arange(used)
        scales.load(live, np.arange(start, patches.stop))
        while len(live):
            chosen = choose(scales.observe(live), scales.tables.legal(scales.value[live]))
            _, ended = scales.act(chosen, live)
            live = live[~ended]
        value[patches], steps[patches] = scales.value[:used], scales.step[:used]
        actions[patches] = scales.history[:used].astype(np.int8) - 1
    return Weighed(value, steps, actions, forced=~(actions == task.end).any(1))


def counts_of(value: npt.NDArray[np.int64], task: WeighingTask, bank: FeatureBank, readout: Readout = "mean") -> Floats:
    """The people that weighed values, in ticks, stand for.

    An interval stands for what the readout says. A real-valued count stands for itself: no quantizer is asked.
    """
    if task.tick == 1.0:
        return readout_values(bank, readout)[value]
    if not isinstance(readout, str) or readout != "mean":
        raise LibraError(
            f"readout is {readout!r}, but real-valued counts, as this scale weighs, stand for themselves; leave it out."
        )
    return value.astype(np.float64) * task.tick


def readout_values(bank: FeatureBank, readout: Readout) -> Floats:
    """The people that each interval of a bank counts for, `(intervals,)`."""
    if not isinstance(readout, str):
        values = np.asarray(readout, dtype=np.float64)
        if values.shape != (bank.num_intervals,):
            raise LibraError(
                f"readout has shape {values.shape}, but bank {bank.name!r} has {bank.num_intervals} intervals."
            )
        return values
    if readout == "mean":
        return np.asarray(bank.quantizer.values)
    if readout == "middle":
        appendix = Quantizer.log(bank.num_intervals)
        if np.allclose(appendix.edges, bank.quantizer.edges):
            return np.asarray(appendix.values)
        raise LibraError(
            f"Bank {bank.name!r} has other intervals than the appendix's; give readout their values instead."
        )
    raise LibraError(f"readout is {readout!r}, but it must be 'mean', 'middle' or one value per interval.")


def _chooser(policy: Policy, channels: int) -> Callable[[npt.NDArray[np.float32], npt.NDArray[np.bool_]], Any]:
    """The policy as a function of observations and legal actions."""
    predict = getattr(policy, "predict", None)
    normalising = getattr(policy, "get_vec_normalize_env", lambda: None)()  # an SB3 model's `VecNormalize`
    in_parts = isinstance(getattr(policy, "observation_space", None), spaces.Dict)  # it learnt on a DictView

    def ask_predict(observations: npt.NDArray[np.float32], **masks: Any) -> Any:
        seen = cut_in_two(observations, channels) if in_parts else observations
        if normalising is not None:
            seen = normalising.normalize_obs(seen)
        actions, state = predict(seen, deterministic=True, **masks)  # type: ignore[misc]  # not None when called
        if state is not None:
            raise LibraError(
                f"{type(policy).__name__}.predict returned a state, but evaluation carries none from step to step; "
                "give it a method `weigh(bank, task)` that does."
            )
        return actions

    if predict is not None:
        ask, asked = ask_predict, predict
    elif callable(policy):
        ask = asked = policy
    else:
        raise LibraError(f"{policy!r} cannot weigh; a policy is a function, or has a method `predict` or `weigh`.")
    if _takes_masks(asked):
        return lambda observations, legal: ask(observations, action_masks=legal)
    return lambda observations, legal: ask(observations)


def _takes_masks(function: Callable[..., Any]) -> bool:
    try:
        return "action_masks" in inspect.signature(function).parameters
    except ValueError:  # a function written in C does not tell
        return False


def _returns(weighed: Weighed, bank: FeatureBank, task: WeighingTask, gamma: float) -> Floats:
    """The discounted sum of rewards of each patch, from its actions."""
    on_intervals = task.tick == 1.0
    physics = TaskTables(task) if on_intervals else task
    truth = (bank.intervals if on_intervals else bank.counts.double() / task.tick).cpu().numpy()
    value, total = np.zeros(len(bank), dtype=np.int64), np.zeros(len(bank))
    for step in range(task.max_steps):
        live = np.flatnonzero(weighed.actions[:, step] >= 0)
        outcome = physics.outcome(truth[live], value[live], weighed.actions[live, step], step)
        total[live] += gamma**step * outcome.reward
        value[live] = outcome.value
    return total
