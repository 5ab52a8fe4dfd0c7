"""Run a plan: jobs when their needs are met, again when they were killed, and not when something they need failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from experiments.reproduce.executors import Executor, Outcome
from experiments.reproduce.jobs import Job

RETRIES = 2
"""How often a job that was killed is tried again."""

Listener: TypeAlias = Callable[[Job, Outcome, int, int], None]
"""Told of each job that ended, and how many of how many have."""


@dataclass
class Executed:
    """How a plan went."""

    outcomes: dict[str, Outcome]
    """By key; a job that was not come to is not there."""
    interrupted: bool = False

    @property
    def failed(self) -> bool:
        """Whether any job did not come to its result."""
        return any(outcome.status != "done" for outcome in self.outcomes.values())


def execute(jobs: Sequence[Job], executor: Executor, listener: Listener) -> Executed:
    """Run jobs, needs first and otherwise in their order, so that a table's first rows are finished first.

    What needs a failed job fails with its reason; all else goes on. Ctrl-C asks the running jobs to save their state
    and leaves the rest for the next time.
    """
    executed = Executed({})
    outcomes = executed.outcomes
    planned = {job.key for job in jobs}
    waiting = list(jobs)
    tries: dict[str, int] = {}
    running = 0

    def end(job: Job, outcome: Outcome) -> None:
        outcomes[job.key] = outcome
        listener(job, outcome, len(outcomes), len(jobs))

    try:
        while waiting or running:
            for job in list(waiting):
                needs = [need for need in job.needs if need.key in planned]
                lost = next((need for need in needs if _lost(outcomes.get(need.key))), None)
                if lost is not None:
                    waiting.remove(job)
                    end(job, Outcome("failed", reason=_because(lost, outcomes[lost.key])))
                elif running < executor.at_once and all(need.key in outcomes for need in needs):
                    waiting.remove(job)
                    executor.submit(job)
                    running += 1
            if not running:
                continue  # only failures were dealt with, which may have decided others
            job, outcome = executor.next()
            tries[job.key] = tries.get(job.key, 0) + 1
            if outcome.status == "killed" and tries[job.key] <= RETRIES:
                executor.submit(job)
                continue
            running -= 1
            end(job, outcome)
    except KeyboardInterrupt:
        executed.interrupted = True
    finally:
        executor.close(stop=executed.interrupted)
    return executed


def _lost(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.status != "done"


def _because(need: Job, outcome: Outcome) -> str:
    """The first failure in a chain is the one to name."""
    return outcome.reason if " failed: " in outcome.reason else f"“{need.title}” failed: {outcome.reason}"
