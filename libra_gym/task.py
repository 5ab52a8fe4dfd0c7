"""The weighing task: what an action does to the scale and what it is worth (Sec. 2.1 and 2.2 of the paper).

Everything that libra-gym knows about actions, legality and rewards is in this file. The functions are pure and batched:
they take numpy arrays or torch tensors of any (broadcastable) shape and answer in kind, so that the environments, the
agents' fast paths on a GPU, the oracle and the evaluator share one set of physics.

Values are whole numbers of *ticks*. For the paper's main task a tick is one interval; for weighing real-valued counts
it is a hundredth of a person, so that adding and removing weights stays exact.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from libra_gym.errors import LibraError
from libra_gym.settings import AtLeastOne, AtLeastZero, NotNegative, Positive, check_fields

Array: TypeAlias = Any  # numpy.ndarray or torch.Tensor; both in, the same kind out
WeightEncoding: TypeAlias = Literal["value", "index"]

INTERVAL_POOL = (-10, -5, -2, -1, 1, 2, 5, 10)
"""The paper's eight value operations; `end` follows them as the last action."""

MOST_WEIGHTS, MOST_STEPS = 126, 255
"""An action plus one fits a signed byte, and a step an unsigned one, wherever weighings are stored."""

COUNT_POOL = (-500, -200, -100, -50, -20, -10, -5, -2, -1, 1, 2, 5, 10, 20, 50, 100, 200, 500)
"""The eighteen value operations of the TasselNetv2† section, in hundredths of a person."""


@dataclass(frozen=True)
class Rewards:
    """Constants and switches of the reward (Eq. 8 to 14); the defaults are the paper's."""

    end: float = 5.0
    """η_e: balanced (+) or not (−) at the end, Eq. 8 and 9."""
    guide: float = 3.0
    """η_g: the optimal weight, Eq. 10."""
    fall: float = 1.0
    """η_+: another weight that lessens the error, Eq. 10."""
    rise: float = -1.0
    """η_−: a weight that does not, Eq. 10."""
    squeeze_guide: float = -1.0
    """η_sg: the optimal weight, but the value is out of range, Eq. 14."""
    squeeze: float = -3.0
    """η_s: any other weight that leaves the value out of range, Eq. 14."""
    balance_tolerance: NotNegative | None = None
    """ε₁, in ticks: an error up to it counts as balanced. None: as near as the weights can bring the scale, which is 0
    for intervals and half a tick for real-valued counts; a task's own rewards have that number here."""
    balance_share: NotNegative = 0.0
    """An error up to this share of the truth counts as balanced too, as it does within a logarithmic interval."""
    squeeze_tolerance: NotNegative = 0.5
    """ε₂: the value may exceed the truth by this share of it, Eq. 13."""
    guiding: bool = True
    """Off is the ablation "W/O Guiding": `fall` or `rise` for every weight."""
    force_ending: bool = True
    """Off is the ablation "W/O Force Ending": the last step is rewarded like the ones before it."""
    squeezing: bool = True
    """Off is the ablation "W/O Squeezing": Eq. 10 everywhere."""
    shape: Literal["paper", "error"] = "paper"
    """`error` rewards every action with the error that it takes away instead; see `WeighingTask.error_reward`."""
    error_offset: Positive = 0.5
    """People added to both sides before their error is taken, with `shape="error"`."""

    def __post_init__(self) -> None:
        check_fields(self)

    def refuse_idle(self) -> None:
        """Refuse constants that differ from their defaults although rewards of this shape do not have them."""
        usual = Rewards()
        for name in PAPERS_ALONE if self.shape == "error" else ("error_offset",):
            if (value := getattr(self, name)) != getattr(usual, name):
                other = "paper" if self.shape == "error" else "error"
                raise LibraError(
                    f"rewards has {name}={value!r}, which rewards of shape {self.shape!r} do not have; leave it out, "
                    f"or take shape={other!r}."
                )


PAPERS_ALONE = (
    "end", "guide", "fall", "rise", "squeeze_guide", "squeeze", "squeeze_tolerance", "guiding", "force_ending",
    "squeezing",
)  # fmt: skip
"""What rewards of shape `error` do not have; what counts as balanced, they do."""


class Outcome(NamedTuple):
    """What one action did: the new value, the reward, and whether the weighing is over."""

    value: Array
    reward: Array
    ended: Array


@dataclass(frozen=True)
class WeighingTask:
    """One scale: its weights, its range and its rules.

    Every method broadcasts over its arguments. `truth` is what the patch weighs, `value` the sum of the weights on the
    pan, both in ticks; `step` is the number of actions taken before; `action` indexes the pool, `end` being the last.

    Args:
        ceiling: the largest value that the pan may hold (C − 1 for C intervals).
        pool: the weights in ticks, ascending; `end` is added after them.
        tick: what one tick is worth, in intervals or people.
        max_steps: t_m; the weighing is over after this many actions.
        weight_encoding: how the weight vector shows a placed weight: its `value` divided by the largest one, or
            the raw `index` of the action plus one (`end` being one more than the number of weights, empty 0).
        rewards: the constants of the reward.
        people: how many people each value from 0 to the ceiling counts for; only rewards of shape `error` need it.
    """

    ceiling: AtLeastZero
    pool: tuple[int, ...] = INTERVAL_POOL
    tick: Positive = 1.0
    max_steps: AtLeastOne = 8
    weight_encoding: WeightEncoding = "value"
    rewards: Rewards = field(default_factory=Rewards)
    people: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rewards.balance_tolerance is None:
            near = 0.0 if self.tick == 1.0 else 0.5
            object.__setattr__(self, "rewards", replace(self.rewards, balance_tolerance=near))
        if not self.pool or 0 in self.pool or list(self.pool) != sorted(set(self.pool)):
            raise LibraError(f"WeighingTask.pool is {self.pool}, but it must be ascending, distinct non-zero weights.")
        if len(self.pool) > MOST_WEIGHTS or self.max_steps > MOST_STEPS:
            raise LibraError(
                f"WeighingTask has {len(self.pool)} weights and max_steps {self.max_steps}, but actions and steps are "
                f"kept in bytes: at most {MOST_WEIGHTS} weights and {MOST_STEPS} steps."
            )
        if self.people and len(self.people) != self.ceiling + 1:
            raise LibraError(f"WeighingTask.people has {len(self.people)} numbers for {self.ceiling + 1} values.")
        if self.rewards.shape == "error" and self.tick == 1.0 and not self.people:
            raise LibraError("Rewards of shape 'error' need WeighingTask.people: what each interval counts for.")

    @classmethod
    def intervals(cls, num_intervals: int, **settings: Any) -> WeighingTask:
        """The paper's main task: nine actions on the intervals 0 … num_intervals − 1."""
        return cls(ceiling=num_intervals - 1, **settings)

    @classmethod
    def counts(cls, max_count: float, **settings: Any) -> WeighingTask:
        """Weighing real-valued counts with the weights of the TasselNetv2† section.

        The paper prints no `end` for this pool and no tolerance. Here `end` is the nineteenth action, and the scale
        balances within half the smallest weight (0.005 people), which is as near as the weights can bring it;
        `Rewards.balance_share` widens that for large counts.
        """
        return cls(ceiling=int(np.ceil(max_count * 100)), pool=COUNT_POOL, tick=0.01, **settings)

    @property
    def num_actions(self) -> int:
        """The weights and `end`."""
        return len(self.pool) + 1

    @property
    def end(self) -> int:
        """The index of the action `end`."""
        return len(self.pool)

    @property
    def labels(self) -> tuple[str, ...]:
        """The actions as a person would write them: "-10" … "+10", "end"."""
        return (*(f"{weight * self.tick:+g}" for weight in self.pool), "end")

    @property
    def weight_bounds(self) -> tuple[float, float]:
        """The least and greatest number that the encoded weight vector can hold."""
        codes = self._encoding("cpu").numpy()
        return float(codes.min()), float(codes.max())

    def with_rewards(self, **changes: Any) -> WeighingTask:
        """The same scale with some reward settings changed."""
        return replace(self, rewards=replace(self.rewards, **changes))

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> WeighingTask:
        """The inverse of `to_dict`."""
        rest = {k: v for k, v in settings.items() if k not in ("pool", "rewards", "people")}
        people = tuple(settings.get("people", ()))
        return cls(pool=tuple(settings["pool"]), rewards=Rewards(**settings["rewards"]), people=people, **rest)

    # ------------------------------------------------------------------------------------------------ the scale

    def place(self, value: Array, action: Array) -> Array:
        """The value after an action, Eq. 5.

        An illegal weight, which only an agent without a mask can choose, moves the value to the end of its range.
        """
        xp, deltas = self._constants(value)
        return xp.clip(value + deltas[action], 0, self.ceiling)

    def legal(self, value: Array) -> Array:
        """Which actions keep the value in range, as booleans in a new last axis. `end` always does."""
        _, deltas = self._constants(value)
        after = value[..., None] + deltas
        return (after >= 0) & (after <= self.ceiling)

    def tolerance(self, truth: Array) -> Array:
        """The greatest error, in ticks, that counts as balanced: `balance_tolerance`, or the share if it is more."""
        xp, _ = self._constants(truth)
        return xp.clip(self.rewards.balance_share * _exact(truth), self.rewards.balance_tolerance, None)

    def balanced(self, truth: Array, value: Array) -> Array:
        """Whether value and truth differ by no more than the tolerance."""
        return abs(truth - value) <= self.tolerance(truth)

    def optimal(self, truth: Array, value: Array) -> Array:
        """a^g of Eq. 11: the legal weight that brings the value nearest to the truth, or `end` once it balances.

        Ties go to the first weight in pool order. Where no weight of a pool is legal, `end` is what is left.
        """
        xp, deltas = self._constants(value)
        gap = truth - value
        after = value[..., None] + deltas[:-1]
        distance = abs(gap[..., None] - deltas[:-1])
        distance = xp.where((after >= 0) & (after <= self.ceiling), distance, np.inf)
        nearest = xp.argmin(distance, -1)
        stuck = (distance == np.inf).all(-1)
        return xp.where(self.balanced(truth, value) | stuck, self.end, nearest)

    def in_range(self, truth: Array, value: Array) -> Array:
        """S of Eq. 13: whether the value exceeds the truth by no more than the tolerated share."""
        return value - truth <= self.rewards.squeeze_tolerance * _exact(truth)

    def ends(self, action: Array, step: Array) -> Array:
        """Whether the weighing is over after this action: `end` was chosen, or t_m is reached."""
        return (action == self.end) | (step >= self.max_steps - 1)

    def reward(self, truth: Array, value: Array, action: Array, step: Array) -> Array:
        """The reward of one action, Eq. 8 to 14, as float32.

        The order of cases: at the last step, any action is judged by the error that it leaves (Eq. 9); before
        that, `end` is judged by the error it found (Eq. 8), and a weight by Eq. 10 while the value it leaves is in
        range, else by Eq. 14.
        """
        return self.outcome(truth, value, action, step).reward

    def outcome(self, truth: Array, value: Array, action: Array, step: Array) -> Outcome:
        """Value, reward and ending of one action."""
        xp, _ = self._constants(value)
        r = self.rewards
        after = self.place(value, action)
        if r.shape == "error":
            return Outcome(after, self.error_reward(truth, value, after), self.ends(action, step))
        error, error_after = abs(truth - value), abs(truth - after)
        fell = error_after < error
        if r.guiding:
            guided = fell & (action == self.optimal(truth, value))
            reward = xp.where(guided, r.guide, xp.where(fell, r.fall, r.rise))
            if r.squeezing:
                squeezed = xp.where(guided, r.squeeze_guide, r.squeeze)
                reward = xp.where(self.in_range(truth, after), reward, squeezed)
        else:
            reward = xp.where(fell, r.fall, r.rise)
        at_end = action == self.end
        last = step >= self.max_steps - 1
        judged = at_end | last if r.force_ending else at_end
        reward = xp.where(judged, xp.where(self.balanced(truth, after), r.end, -r.end), reward)
        return Outcome(after, reward.astype(np.float32) if xp is np else reward.float(), at_end | last)

    def error_reward(self, truth: Array, value: Array, after: Array) -> Array:
        """An extension of the paper: the error in people before the action less the error after it, as float32.

        The error is the Poisson deviance y·ln(y/x) − (y − x) of the truth y and the value x, both in people plus
        `error_offset`. Summed over a weighing, the rewards are what the weighing has taken off the error of an empty
        pan, so that to earn most is to end nearest; and of all values the *mean* of the possible counts has the least
        expected deviance, so that an agent which is unsure of each patch still adds up to the right number of people.
        """
        y = self._in_people(truth) + self.rewards.error_offset
        before = self._in_people(value) + self.rewards.error_offset
        now = self._in_people(after) + self.rewards.error_offset
        xp = torch if isinstance(value, torch.Tensor) else np
        gain = y * xp.log(now / before) + before - now
        return gain.float() if xp is torch else gain.astype(np.float32)

    def _in_people(self, value: Array) -> Array:
        if self.tick != 1.0:
            return value * self.tick
        if isinstance(value, torch.Tensor):
            return _table(self.people, str(value.device))[value.long()]
        return _table(self.people, "cpu").numpy()[np.asarray(value).astype(np.int64)]

    def all_rewards(self, truth: Array, value: Array, step: Array) -> Array:
        """The reward of every action, in a new last axis; the task is exact, so none needs to be tried."""
        xp, _ = self._constants(value)
        actions = xp.arange(self.num_actions) if xp is np else torch.arange(self.num_actions, device=value.device)
        return self.reward(truth[..., None], value[..., None], actions, step[..., None])

    # ---------------------------------------------------------------------------------------- the weight vector

    def encode(self, history: Array) -> Array:
        """The weight vector W_t of Eq. 4, 6 and 7 as float32, from a history of actions.

        `history` holds, for each of the t_m steps, the action plus one, or 0 where none was taken yet.
        """
        if isinstance(history, torch.Tensor):
            return self._encoding(str(history.device))[history.long()]
        return self._encoding("cpu").numpy()[history]

    def _encoding(self, device: str) -> torch.Tensor:
        return _encoding(self.pool, self.weight_encoding, device)

    def _constants(self, like: Array) -> tuple[Any, Array]:
        """The array library of `like`, and what each action adds to the value."""
        if isinstance(like, torch.Tensor):
            return torch, _deltas(self.pool, str(like.device))
        return np, _deltas(self.pool, "cpu").numpy()


def _exact(truth: Array) -> Array:
    """In double precision: torch would round a share of it where numpy does not."""
    return truth.double() if isinstance(truth, torch.Tensor) else truth


@lru_cache(maxsize=64)
def _table(numbers: tuple[float, ...], device: str) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=device)


@lru_cache(maxsize=64)
def _deltas(pool: tuple[int, ...], device: str) -> torch.Tensor:
    return torch.tensor((*pool, 0), device=device)


@lru_cache(maxsize=64)
def _encoding(pool: tuple[int, ...], encoding: WeightEncoding, device: str) -> torch.Tensor:
    if encoding == "index":
        return torch.arange(len(pool) + 2, dtype=torch.float32, device=device)
    return torch.tensor((0, *pool, 0), dtype=torch.float32, device=device) / max(abs(w) for w in pool)
