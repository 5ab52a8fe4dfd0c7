"""Where jobs run: processes of this machine, or a Ray cluster. Both run the same function on a job."""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Protocol, TypeAlias

from experiments.reproduce.jobs import DONE, LOG, Call, Job
from libra_gym.errors import LibraError
from libra_gym.features.storage import locked, write_whole

Status: TypeAlias = Literal["done", "failed", "killed"]
Starter: TypeAlias = Callable[["subprocess.Popen[bytes]"], None]

_SIGNALLED = 128
"""A shell reports the death by signal n as this plus n; Python as −n."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended; `killed` jobs are worth another try, `failed` ones are not."""

    status: Status
    seconds: float = 0.0
    reason: str = ""


class Executor(Protocol):
    """Takes jobs, runs as many at a time as it can, and gives back how each ended."""

    width: int
    """How many jobs run at a time."""
    at_once: float
    """How many jobs to give it at a time: a cluster that grows when it has much to do gets all that can be run."""

    def submit(self, job: Job) -> None:
        """Take a job whose needs are met."""
        ...

    def next(self) -> tuple[Job, Outcome]:
        """Wait for the next job that ends."""
        ...

    def close(self, *, stop: bool = False) -> None:
        """Give up what is held; with `stop`, ask running jobs to save their state and end."""
        ...


# ----------------------------------------------------------------------------------------------------------- one job


def run_job(job: Job, environment: Mapping[str, str] | None = None, started: Starter | None = None) -> Outcome:
    """Run a job's command, or go on with what is there of it; its output goes to the job's log.

    Args:
        job: what to run.
        environment: variables to set for the command.
        started: told about the process.
    """
    try:
        with locked(job.directory):
            if job.state == "done":
                return Outcome("done")
            return _run(job, {**os.environ, **(environment or {})}, started)
    except LibraError as error:
        return Outcome("failed", reason=str(error))


def _run(job: Job, environment: dict[str, str], started: Starter | None) -> Outcome:
    call = job.begin
    if job.state == "begun" and job.resume is not None and (job.resume == job.begin or _begun_here(job)):
        call = job.resume
    else:
        _clear(job.output)
    resumed = call is job.resume
    write_whole(job.directory / "job.json", _json(job.record()))
    begun = time.monotonic()
    with (job.directory / LOG).open("ab") as log:
        log.write(f"$ {call}\n".encode())
        log.flush()
        mark = log.tell()
        status = _command(call, environment, log.fileno(), started)
    seconds = time.monotonic() - begun
    if status == 0:
        record = {"seconds": seconds, "unit": job.unit, "units": job.units, "resumed": resumed, "command": str(call)}
        write_whole(job.directory / DONE, _json(record))
        return Outcome("done", seconds)
    if status < 0 or status > _SIGNALLED:
        number = -status if status < 0 else status - _SIGNALLED
        return Outcome("killed", seconds, f"was ended by {_signal_name(number)}")
    reason = _last_words(job.directory / LOG, mark) or f"ended with status {status}"
    if resumed and call != job.begin:
        reason += f" To begin this job anew, delete {job.directory}."
    return Outcome("failed", seconds, reason)


def _begun_here(job: Job) -> bool:
    """Whether what is there was begun with the same paths: an output or a root may have been moved since."""
    try:
        return json.loads((job.directory / "job.json").read_bytes())["command"] == str(job.begin)
    except (OSError, ValueError, KeyError):
        return False


def _command(call: Call, environment: dict[str, str], output: int, started: Starter | None) -> int:
    """Run a command to its end; it does not outlive the process that started it."""
    arguments = [sys.executable, "-m", call.module, *call.arguments]
    with subprocess.Popen(
        arguments,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
    ) as process:
        if started is not None:
            started(process)
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Else a killed worker's command would go on and hold the directory that its successor needs."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _clear(output: Path) -> None:
    if output.is_dir():
        shutil.rmtree(output)
    else:
        output.unlink(missing_ok=True)


def _last_words(log: Path, start: int) -> str:
    """A user's mistake as `libra` states it, or else the last line of the command."""
    with log.open("rb") as file:
        file.seek(start)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    stated = [line.removeprefix("libra: ") for line in lines if line.startswith("libra: ")]
    return (stated or lines or [""])[-1]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


# ------------------------------------------------------------------------------------------------------ this machine


class LocalExecutor:
    """Processes of this machine, which share its cores."""

    def __init__(self, width: int = 1) -> None:
        self.width = self.at_once = width
        self._threads = ThreadPoolExecutor(width)
        self._ended: SimpleQueue[tuple[Job, Outcome]] = SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment: dict[str, str] = {}
        if width > 1 and "OMP_NUM_THREADS" not in os.environ:
            self._environment["OMP_NUM_THREADS"] = str(max((os.cpu_count() or 1) // width, 1))

    def submit(self, job: Job) -> None:
        """Start the job as soon as a place is free."""
        self._threads.submit(self._work, job)

    def _work(self, job: Job) -> None:
        try:
            outcome = run_job(job, self._environment, self._processes.append)
        except Exception as error:
            outcome = Outcome("failed", reason=f"{type(error).__name__}: {error}")
        self._ended.put((job, outcome))

    def next(self) -> tuple[Job, Outcome]:
        """Wait for the next job that ends."""
        return self._ended.get()

    def close(self, *, stop: bool = False) -> None:
        """Wait for the processes; with `stop`, ask them to end first."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if stop:
            for process in self._processes:
                if process.poll() is None:
                    process.terminate()
        self._threads.shutdown()


# --------------------------------------------------------------------------------------------------------------- Ray


class RayExecutor:
    """Tasks of a Ray cluster, one processor each, and one GPU where the cluster has any.

    The output directory, the data and the weights must be at the same paths on all machines.
    """

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError:
            raise LibraError("--ray needs Ray; install it with: pip install 'libra-gym[ray]'.") from None
        try:
            ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise LibraError(f"There is no Ray cluster at {address!r} ({str(error).splitlines()[0]}).") from None
        self._ray: Any = ray
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        self.width = gpus or max(int(resources.get("CPU", 1)), 1)
        self.at_once = math.inf
        self._run: Any = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_retries=0)(run_job)
        self._running: dict[Any, Job] = {}

    def submit(self, job: Job) -> None:
        """Hand the job to the cluster."""
        self._running[self._run.remote(job)] = job

    def next(self) -> tuple[Job, Outcome]:
        """Wait for the next job that ends; one whose worker or machine was lost is `killed`."""
        (reference,), _ = self._ray.wait(list(self._running), num_returns=1)
        job = self._running.pop(reference)
        errors = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(reference)
        except errors.RayTaskError as error:
            outcome = Outcome("failed", reason=str(error).strip().splitlines()[-1])
        except errors.RayError as error:
            outcome = Outcome("killed", reason=f"lost its worker ({type(error).__name__})")
        return job, outcome

    def close(self, *, stop: bool = False) -> None:
        """Leave the cluster."""
        if stop:
            for reference in self._running:
                self._ray.cancel(reference)
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=30)
        self._ray.shutdown()
