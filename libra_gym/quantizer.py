"""Counts ⇄ intervals (the paper's Appendix A).

A quantizer is a list of edges and a list of values: interval c holds the counts from `edges[c-1]` up to `edges[c]`, and
a patch weighed as interval c counts as `values[c]` people. The appendix's logarithmic binning is one such list.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from libra_gym.errors import LibraError

Readout: TypeAlias = Literal["middle", "mean"]

NOBODY = 1e-3
"""Patches with fewer people hold nobody. The appendix says N = 0, which the tails of a Gaussian never reach."""


@dataclass(frozen=True)
class Quantizer:
    """Intervals 0 … C − 1 between C − 1 ascending edges, and what each interval counts for.

    Counts below the first edge are interval 0; counts at or above the last edge are the top interval, however large.
    """

    edges: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.edges) + 1:
            raise LibraError(
                f"A quantizer with {len(self.edges)} edges needs {len(self.edges) + 1} values, not {len(self.values)}."
            )
        if not np.all(np.diff(self.edges) > 0):
            raise LibraError("The edges of a quantizer must be strictly ascending.")

    # ------------------------------------------------------------------------------------------------- binnings

    @classmethod
    def log(cls, intervals: int, *, width: float = 0.1, low: float = -2.0) -> Quantizer:
        """The appendix's binning: nobody, up to e^low, then steps of `width` in the logarithm; bin-middle values."""
        if intervals < 2:
            raise LibraError(f"A logarithmic quantizer needs at least 2 intervals, not {intervals}.")
        bounds = np.exp(low + width * np.arange(intervals - 1))  # upper bounds of intervals 1 … C-1
        edges = np.concatenate([[NOBODY], bounds[:-1]])
        values = np.concatenate([[0.0, bounds[0] / 2], (bounds[:-1] + bounds[1:]) / 2])
        return cls(tuple(edges.tolist()), tuple(values.tolist()))

    @classmethod
    def fit_log(
        cls, counts: npt.ArrayLike, *, width: float = 0.1, low: float = -2.0, readout: Readout = "middle"
    ) -> Quantizer:
        """The appendix's binning with just enough intervals for these counts."""
        people = np.asarray(counts, dtype=np.float64)
        top = max(float(people.max(initial=0.0)), NOBODY)
        intervals = 1 + max(int(np.floor((np.log(top) - low) / width + 2)), 1)
        enough = cls.log(intervals + 1, width=width, low=low)  # one more than needed guards against rounding at an edge
        needed = int(enough.quantize(people).max(initial=1)) + 1
        quantizer = cls.log(max(needed, 2), width=width, low=low)
        return quantizer.with_means(people) if readout == "mean" else quantizer

    @classmethod
    def integer(cls, top: int) -> Quantizer:
        """One interval per whole number of people up to `top`, for hard points."""
        if top < 1:
            raise LibraError(f"An integer quantizer needs a top count of at least 1, not {top}.")
        return cls(tuple(k + 0.5 for k in range(top)), tuple(float(k) for k in range(top + 1)))

    def with_means(self, counts: npt.ArrayLike) -> Quantizer:
        """Replace each interval's value by the mean of these counts in it, where there are any; nobody stays 0."""
        people = np.asarray(counts, dtype=np.float64).ravel()
        index = self.quantize(people)
        number = np.bincount(index, minlength=self.num_intervals)
        total = np.bincount(index, weights=people, minlength=self.num_intervals)
        values = np.where(number > 0, total / np.maximum(number, 1), self.values)
        values[0] = 0.0
        return replace(self, values=tuple(values.tolist()))

    # -------------------------------------------------------------------------------------------------- mapping

    @property
    def num_intervals(self) -> int:
        """C, the number of intervals."""
        return len(self.values)

    def quantize(self, counts: Any) -> Any:
        """The interval of each count (Eq. 21), as int64; numpy in, numpy out, and the same for torch."""
        if isinstance(counts, torch.Tensor):
            edges = torch.tensor(self.edges, dtype=torch.float64, device=counts.device)
            return torch.bucketize(counts.double(), edges, right=True)
        return np.searchsorted(np.asarray(self.edges), np.asarray(counts, dtype=np.float64), side="right")

    def dequantize(self, intervals: Any) -> Any:
        """The people that each interval counts for (Eq. 22), as float32 in torch and float64 in numpy."""
        if isinstance(intervals, torch.Tensor):
            return torch.tensor(self.values, dtype=torch.float32, device=intervals.device)[intervals.long()]
        return np.asarray(self.values)[intervals]

    def to_dict(self) -> dict[str, list[float]]:
        """The quantizer as plain JSON types."""
        return {"edges": list(self.edges), "values": list(self.values)}

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Quantizer:
        """The inverse of `to_dict`."""
        return cls(tuple(settings["edges"]), tuple(settings["values"]))
