"""Benchmarks, one file per subject.

Each file has a function `run(options)` that returns a flat dict of name → number. Timings are noisy, so what counts are
ratios of things measured side by side in one run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class BenchOptions:
    """What a user may give to benchmarks that can use real data."""

    root: Path | None = None
    """The ShanghaiTech directory."""
    weights: Path | None = None
    """VGG16 weights."""


def seconds(function: Callable[[], object], repeats: int = 50, warm_up: int = 5) -> float:
    """The median time of one call."""
    for _ in range(warm_up):
        function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def peak_mb() -> float:
    """The peak memory of this process so far."""
    if sys.platform == "linux":  # where the usage of resources begins with the parent's peak
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3
    import resource  # Windows has none

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
