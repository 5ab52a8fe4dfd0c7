"""Processes that read photos for another one."""

from __future__ import annotations

import os
import signal


def default_workers() -> int:
    """How many are worth it: two, or one on a machine that has only one core for us."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(2, cores)


def leave_signals(worker: int) -> None:
    """Leave Ctrl-C and polite requests to end to the process that is read for; a loader's `worker_init_fn`.

    A terminal or a cluster sends them to every process. A reader that ended by itself would be missed, while the other
    one is still about to save what it has done, and then tells its readers.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
