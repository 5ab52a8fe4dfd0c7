"""How long jobs will take: first a guess per unit, then what was measured in the same output directory."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from experiments.reproduce.jobs import DONE, Job

START = 5.0
"""Seconds to start a command."""

GUESSES = {
    "features": (1.0, "photo"),
    "pretrain": (0.5, "photo and epoch"),
    "agent": (0.7, "photo and epoch"),
    "head": (0.02, "photo and epoch"),
    "evaluate": (0.02, "photo"),
    "speed": (30.0, "measurement"),
}
"""Seconds per unit, for photos of ShanghaiTech A's size on two CPU cores; they stand until some were measured."""


@dataclass(frozen=True)
class Rate:
    """Seconds per unit, and how often that was measured (0: a guess)."""

    seconds: float
    per: str
    measured: int = 0

    def __str__(self) -> str:
        """For the plan."""
        source = f"measured here on {self.measured} jobs" if self.measured else "a guess"
        return f"{self.seconds:.2g} s per {self.per} ({source})"


def rates(cache: Path) -> dict[str, Rate]:
    """What each unit costs, by the finished jobs of this directory where there are any."""
    found: dict[str, list[float]] = defaultdict(list)
    for path in sorted(cache.glob(f"*/{DONE}")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["units"] and not record["resumed"]:
            found[record["unit"]].append(max(record["seconds"] - START, 0.0) / record["units"])
    return {
        unit: Rate(median(found[unit]), per, len(found[unit])) if unit in found else Rate(seconds, per)
        for unit, (seconds, per) in GUESSES.items()
    }


def estimate(job: Job, known: dict[str, Rate]) -> float:
    """Seconds for a job from its beginning."""
    return START + known[job.unit].seconds * job.units


def whole(jobs: Sequence[Job], known: dict[str, Rate], width: int) -> float:
    """Seconds for all jobs, `width` at a time: their sum dealt out, but no less than the longest chain."""
    ends: dict[str, float] = {}
    for job in jobs:  # needs come first
        ends[job.key] = estimate(job, known) + max((ends.get(need.key, 0.0) for need in job.needs), default=0.0)
    total = sum(estimate(job, known) for job in jobs)
    return max(total / max(width, 1), max(ends.values(), default=0.0))


def readable(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def used(jobs: Iterable[Job], known: dict[str, Rate]) -> list[str]:
    """The rates behind an estimate, in words."""
    units = dict.fromkeys(job.unit for job in jobs)
    return [f"{unit}: {known[unit]}" for unit in units]
