"""Which patch goes on which scale next.

Random patches come from a counter-based generator: the k-th patch of an environment is a hash of its seed and k. So a
batch of thousands of environments draws without a generator object each, and still draws exactly what as many single
environments with the same seeds would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from libra_gym.errors import LibraError

Order: TypeAlias = Literal["random", "sequential", "shuffled"]


class PatchOrder:
    """Hands out patches to a number of scales.

    `random` draws each patch independently. `sequential` and `shuffled` go through the bank epoch by epoch, each patch
    once per epoch whichever scale takes it: in the bank's order, or in a new seeded order every epoch.
    """

    def __init__(self, order: Order, patches: int, scales: int) -> None:
        if order not in get_args(Order):
            raise LibraError(f"order is {order!r}, but it must be one of: {', '.join(get_args(Order))}.")
        self.order = order
        self.patches = patches
        self._keys = np.zeros(scales, dtype=np.uint64)
        self._episodes = np.zeros(scales, dtype=np.uint64)
        self._line_key = 0
        self._drawn = 0
        self._lines: dict[int, npt.NDArray[np.int64]] = {}

    def seed(self, seeds: Sequence[int], scales: npt.NDArray[np.intp], *, epochs: bool = True) -> None:
        """Start these scales, and unless told otherwise the epochs of an epoch-wise order, afresh from their seeds."""
        self._keys[scales] = _mix(np.array([seed % 2**64 for seed in seeds], dtype=np.uint64))
        self._episodes[scales] = 0
        if not epochs:
            return
        if len(scales):
            self._line_key = int(self._keys[scales[0]])
        self._drawn = 0
        self._lines.clear()

    @property
    def epoch(self) -> int:
        """How many times every patch has been handed out before the one handed out last."""
        return max(self._drawn - 1, 0) // self.patches

    def draw(self, scales: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        """The next patch for each of these scales."""
        numbers = self._drawn + np.arange(len(scales))
        self._drawn += len(scales)
        if self.order == "sequential":
            return numbers % self.patches
        if self.order == "shuffled":
            return self._from_lines(numbers)
        self._episodes[scales] += np.uint64(1)
        drawn = _mix(self._keys[scales] + self._episodes[scales] * _GOLDEN)
        return (drawn % np.uint64(self.patches)).astype(np.int64)

    def _from_lines(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        epochs, places = np.divmod(numbers, self.patches)
        drawn = np.empty_like(numbers)
        for epoch in np.unique(epochs):
            line = self._lines.get(int(epoch))
            if line is None:
                generator = np.random.default_rng([self._line_key, int(epoch)])
                self._lines = {int(epoch): generator.permutation(self.patches)}
                line = self._lines[int(epoch)]
            drawn[epochs == epoch] = line[places[epochs == epoch]]
        return drawn


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64: every bit of the input reaches every bit of the output."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
