"""A job: one `libra` command, and a directory whose name is a hash of all that decides its result.

A job's key is made of its settings and of the keys of the jobs it builds on, and of no path. So what was done for one
table is found by another, a changed setting or photo is a different job, and a directory that moves keeps its worth.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["features", "pretrain", "train", "evaluate", "speed"]
State: TypeAlias = Literal["done", "begun", "to do"]

OUTPUT = "output"
DONE = "done.json"
LOG = "log.txt"


@dataclass(frozen=True)
class Call:
    """What a job runs: the arguments of `libra`, or of another module of this project."""

    arguments: tuple[str, ...]
    module: str = "experiments.cli"

    def __str__(self) -> str:
        """As a person would type it."""
        program = ("libra",) if self.module == "experiments.cli" else ("python", "-m", self.module)
        return shlex.join((*program, *self.arguments))


@dataclass(frozen=True)
class Job:
    """One command with what it needs and where its results go."""

    kind: Kind
    title: str
    settings: Mapping[str, Any]
    """All that decides the result, besides `needs`; plain JSON types."""
    cache: Path
    needs: tuple[Job, ...] = ()
    begin: Call = field(default=Call(()), compare=False)
    resume: Call | None = field(default=None, compare=False)
    """How to go on with an output that has `mark` in it; None begins anew."""
    mark: str = field(default="", compare=False)
    unit: str = field(default="", compare=False)
    """What its cost is counted in; see costs.py."""
    units: float = field(default=0.0, compare=False)

    @cached_property
    def key(self) -> str:
        """The hash that names the directory."""
        identity = [self.kind, dict(self.settings), [need.key for need in self.needs]]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    @property
    def directory(self) -> Path:
        """Where log, results and the mark of completion are."""
        return self.cache / f"{self.kind}-{self.key[:16]}"

    @property
    def output(self) -> Path:
        """What the command itself writes: a directory, or a file of figures."""
        return self.directory / OUTPUT

    @property
    def state(self) -> State:
        """Whether the result is there, or a part of it."""
        if (self.directory / DONE).is_file() and self.output.exists():
            return "done"
        return "begun" if self.mark and (self.output / self.mark).exists() else "to do"

    def record(self) -> dict[str, Any]:
        """What stands in the directory's `job.json`."""
        return {
            "kind": self.kind,
            "title": self.title,
            "key": self.key,
            "settings": dict(self.settings),
            "needs": [need.key for need in self.needs],
            "command": str(self.begin),
        }


def with_needs(jobs: Iterable[Job], *, missing_only: bool = False) -> list[Job]:
    """Jobs and what they build on, each once, needs first; with `missing_only`, none that a finished result spares."""
    found: dict[str, Job] = {}

    def visit(job: Job) -> None:
        if job.key in found or (missing_only and job.state == "done"):
            return
        for need in job.needs:
            visit(need)
        found[job.key] = job

    for job in jobs:
        visit(job)
    return list(found.values())
