"""How far a count may be off: an interval whose coverage was measured on validation photos (split conformal).

The error of each validation photo is divided by a power of its count, and the interval is as wide as the least multiple
of that power that holds the stated share of these errors. If a new photo is like the validation photos, the interval
holds its true number with the stated probability, whatever the distribution of errors; the model's epoch and the power
were chosen on the same photos, which flatters it a little. Spreads of the agent's Q values were tried as the divisor
too, in trials on two models, and gave intervals that were wider or hardly different.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from libra_gym.errors import LibraError

Floats = npt.NDArray[np.float64]

POWERS = (0.5, 0.75, 1.0)
"""Errors may grow like the root of the count (people are missed independently), like the count, or in between."""


@dataclass(frozen=True)
class Uncertainty:
    """The interval count ± `width` · (count + 1) ^ `power`, cut at 0, and how it was found."""

    coverage: float
    """The share of photos whose true number the interval is to hold."""
    power: float
    width: float
    photos: int
    """The validation photos it was fitted to."""
    measured: float
    """The share of them that were held by the interval fitted to the others."""
    measured_sparse: float
    """The same of the half with the smaller counts."""
    measured_crowded: float
    """The same of the half with the larger counts."""

    @classmethod
    def fit(cls, counts: npt.ArrayLike, people: npt.ArrayLike, coverage: float = 0.8) -> Uncertainty:
        """Fit the interval to the counts and the true numbers of validation photos.

        The power is the one with which the emptier and the fuller half of the photos lie in their intervals most
        equally often, and of equals the one with the narrowest intervals. Each left-out photo's interval is fitted from
        scratch, the choice of the power included.
        """
        count, truth = np.asarray(counts, np.float64), np.asarray(people, np.float64)
        if not 0 < coverage < 1:
            raise LibraError(f"The coverage is {coverage}, but it must lie between 0 and 1.")
        if count.shape != truth.shape or count.ndim != 1:
            raise LibraError(f"There are counts of shape {count.shape} and true numbers of shape {truth.shape}.")
        if len(count) < fewest(coverage):
            raise LibraError(
                f"An interval that holds {coverage:.0%} of the photos needs at least {fewest(coverage)} validation "
                f"photos; there are {len(count)}."
            )
        power, width = _fairest(count, truth, coverage)
        held = np.array([_holds_left_out(index, count, truth, coverage) for index in range(len(count))])
        order = np.argsort(count, kind="stable")
        half = len(count) // 2
        return cls(
            coverage=coverage,
            power=power,
            width=width,
            photos=len(count),
            measured=float(held.mean()),
            measured_sparse=float(held[order[:half]].mean()),
            measured_crowded=float(held[order[half:]].mean()),
        )

    def interval(self, count: float) -> tuple[float, float]:
        """The least and the greatest number of people that this count may stand for."""
        spread = self.width * float(_scale(np.asarray(count), self.power))
        return max(count - spread, 0.0), count + spread

    @property
    def doubt(self) -> float:
        """The deviation, from one draw of so many validation photos to another, of the coverage on new photos."""
        rank = math.ceil((self.photos + 1) * self.coverage - 1e-9)
        return math.sqrt(rank * (self.photos + 1 - rank) / (self.photos + 2)) / (self.photos + 1)

    def __str__(self) -> str:
        few = "; so few photos leave much to chance" if self.doubt > 0.05 else ""
        return (
            f"{self.coverage:.0%} interval from {self.photos} validation photos, {self.measured:.0%} of which lay in "
            f"the interval fitted to the others ({self.measured_sparse:.0%} of the emptier half, "
            f"{self.measured_crowded:.0%} of the fuller); for new photos of the same kind expect {self.coverage:.0%} "
            f"± {100 * self.doubt:.0f} points{few}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


def _scale(count: Floats, power: float) -> Floats:
    return (count + 1.0) ** power


def fewest(coverage: float = 0.8) -> int:
    """The fewest photos that an interval can be fitted to: one more than it takes, because each is left out once."""
    return _needed(coverage) + 1


def _needed(coverage: float) -> int:
    """The fewest errors of which a quantile is a finite one."""
    return math.ceil(coverage / (1 - coverage) - 1e-9)


def _fairest(count: Floats, truth: Floats, coverage: float) -> tuple[float, float]:
    """The power that serves the emptier and the fuller half most alike, and the width in units of it."""
    rank = math.ceil((len(count) + 1) * coverage - 1e-9)
    order = np.argsort(count, kind="stable")
    half = len(count) // 2
    choices = []
    for power in POWERS:
        error = np.abs(count - truth) / _scale(count, power)
        width = float(np.sort(error)[rank - 1])
        held = error[order] <= width
        unlike = abs(float(held[:half].mean()) - float(held[half:].mean()))
        mean_width = width * float(np.exp(np.log(_scale(count, power)).mean()))
        choices.append((round(unlike, 9), mean_width, power, width))
    return min(choices)[2:]


def _holds_left_out(index: int, count: Floats, truth: Floats, coverage: float) -> bool:
    power, width = _fairest(np.delete(count, index), np.delete(truth, index), coverage)
    return bool(abs(count[index] - truth[index]) <= width * _scale(count[index], power))
