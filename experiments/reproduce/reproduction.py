"""One table from its plan to its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.reproduce.costs import estimate, rates, readable, used, whole
from experiments.reproduce.executors import Executor, Outcome
from experiments.reproduce.jobs import Job, with_needs
from experiments.reproduce.paper import paper_tables
from experiments.reproduce.planner import Planner, Request
from experiments.reproduce.report import Report
from experiments.reproduce.results import lines
from experiments.reproduce.schedule import Executed, execute
from experiments.reproduce.tables import Entry, build, place
from experiments.runs.directory import versions


@dataclass(frozen=True)
class Reproduction:
    """What a table needs, and what of it is missing."""

    table: str
    request: Request
    cache: Path
    entries: Sequence[Entry]
    notes: Sequence[str]
    jobs: Sequence[Job]
    """All, needs first."""
    todo: Sequence[Job]
    """Those that no finished result spares."""

    @property
    def name(self) -> str:
        """Of the report's files: variants of a table lie side by side."""
        dataset = "" if self.request.dataset == Request.dataset else f"-{self.request.dataset}"
        preset = "" if self.request.preset == Request.preset else f"-{self.request.preset}"
        return f"{self.table}{dataset}{preset}"

    @classmethod
    def plan(cls, table: str, request: Request) -> Reproduction:
        """Look at the data and at what was done before."""
        planner = Planner(request)
        planner.imagenet()  # a wrong file is the user's mistake, and not to be found in the cells of a table
        entries = build(table, planner)
        if request.budget == "small":
            planner.note("Small budget: a few epochs each, to try things out; not the recipes' own figures.")
        wanted = [job for entry in entries for job in entry.jobs]
        todo = with_needs(wanted, missing_only=True)
        return cls(table, request, planner.cache, entries, list(planner.notes), with_needs(wanted), todo)

    def show(self, console: Console, width: int) -> None:
        """Print the plan: jobs, what is there of them, and how long the rest will take."""
        known = rates(self.cache)
        missing = {job.key for job in self.todo}
        table = Table("job", "state", title=f"plan of {self.name}")
        table.add_column("about", justify="right")
        for job in self.jobs:
            state = job.state if job.key in missing or job.state == "done" else "not needed"
            table.add_row(job.title, state, readable(estimate(job, known)) if job.key in missing else "")
        console.print(table)
        for entry in self.entries:
            if entry.reason is not None:
                _say(console, f"{entry.row}, {entry.where}: no figure, because: {entry.reason}")
        total = readable(whole(self.todo, known, width))
        _say(console, f"{len(self.todo)} of {len(self.jobs)} jobs to run, about {total} with {width} at a time")
        for rate in used(self.todo, known):
            _say(console, f"  {rate}")

    def run(self, executor: Executor, console: Console) -> Executed:
        """Run what is missing, and say of each job how it ended."""

        def listen(job: Job, outcome: Outcome, ended: int, total: int) -> None:
            words = f"done in {readable(outcome.seconds)}" if outcome.status == "done" else "failed"
            reason = "" if outcome.status == "done" else f" ({outcome.reason})"
            _say(console, f"{ended}/{total} {words}: {job.title}{reason}")

        return execute(self.todo, executor, listen)

    def report(self, executed: Executed, command: str) -> Report:
        """The table as it stands."""
        table = paper_tables()[self.table]
        if self.request.dataset != Request.dataset:
            table = replace(table, title=f"{table.title}: the same on {place(self.request.dataset)}")
        found = lines(table, self.entries, executed)
        return Report(self.name, table, found, self.notes, self.jobs, command, versions(), self.request.places)


def _say(console: Console, sentence: str) -> None:
    console.print(sentence, soft_wrap=True, markup=False, highlight=False)
