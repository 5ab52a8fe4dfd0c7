"""Running a plan: on this machine and on Ray, through failures, kills and interruptions."""

import json
from dataclasses import replace

import pytest
from reproduce_helpers import Pretender, Toys

from experiments.reproduce.executors import LocalExecutor, Outcome, RayExecutor, run_job
from experiments.reproduce.jobs import Call, with_needs
from experiments.reproduce.schedule import RETRIES, execute
from libra_gym import LibraError


@pytest.fixture
def toys(tmp_path, monkeypatch):
    return Toys(tmp_path, monkeypatch)


def silent(*_):
    """Nobody listens."""


class Scripted:
    """An executor that ends jobs as it was told, by their titles, and as done where it was told nothing."""

    width = at_once = 1

    def __init__(self, **script):
        self.script = {title: list(outcomes) for title, outcomes in script.items()}
        self.submitted, self.stopped = [], None

    def submit(self, job):
        self.submitted.append(job.title)
        self.last = getattr(self, "last", [])
        self.last.append(job)

    def next(self):
        job = self.last.pop(0)
        outcome = (self.script.get(job.title) or [Outcome("done")]).pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return job, outcome

    def close(self, *, stop=False):
        self.stopped = stop


# ------------------------------------------------------------------------------------------------------------ schedule


def test_jobs_run_after_what_they_need_and_once(toys):
    a = toys.job("a")
    b, c = toys.job("b", needs=[a]), toys.job("c", needs=[a])
    d = toys.job("d", needs=[b, c])
    executor = Pretender()
    executed = execute(with_needs([d, c]), executor, silent)
    assert [job.title for job in executor.ran] == ["a", "b", "c", "d"]
    assert not executed.failed
    assert executor.closed


def test_a_failure_costs_what_needs_it_and_names_the_first_cause(toys):
    a = toys.job("a")
    b = toys.job("b", needs=[a])
    c, other = toys.job("c", needs=[b]), toys.job("other")
    executor = Scripted(a=[Outcome("failed", reason="no room")])
    executed = execute(with_needs([c, other]), executor, silent)
    assert executor.submitted == ["a", "other"]
    assert executed.failed
    assert executed.outcomes[c.key].reason == executed.outcomes[b.key].reason == "“a” failed: no room"
    assert executed.outcomes[other.key].status == "done"


def test_a_killed_job_is_tried_again_and_a_failed_one_is_not(toys):
    killed = Outcome("killed", reason="was ended by SIGKILL")
    jobs = [toys.job("a"), toys.job("b")]
    executor = Scripted(a=[killed, Outcome("done")], b=[Outcome("failed", reason="wrong")])
    executed = execute(jobs, executor, silent)
    assert sorted(executor.submitted) == ["a", "a", "b"]
    assert executed.outcomes[jobs[0].key].status == "done"
    executor = Scripted(a=[killed] * 9)
    executed = execute(jobs[:1], executor, silent)
    assert executor.submitted == ["a"] * (1 + RETRIES)
    assert executed.outcomes[jobs[0].key] == killed


def test_an_interruption_stops_what_runs_and_keeps_what_is_done(toys):
    jobs = [toys.job(name) for name in "abc"]
    executor = Scripted(b=[KeyboardInterrupt()])
    executed = execute(jobs, executor, silent)
    assert executed.interrupted
    assert executor.stopped is True
    assert list(executed.outcomes) == [jobs[0].key]


def test_finished_results_spare_what_they_were_made_of(toys):
    a = toys.job("a")
    b = toys.job("b", needs=[a])
    Pretender().submit(b)
    assert with_needs([b], missing_only=True) == []
    assert with_needs([toys.job("c", needs=[b])], missing_only=True)[0].title == "c"
    b.output.unlink()  # someone made room
    assert [job.title for job in with_needs([b], missing_only=True)] == ["a", "b"]


# ------------------------------------------------------------------------------------------------------------- one job


def test_a_job_leaves_its_command_log_and_time(toys):
    job = toys.job("a")
    assert run_job(job).status == "done"
    assert job.state == "done"
    record = json.loads((job.directory / "done.json").read_text())
    assert record["seconds"] > 0
    assert record["command"] == f"python -m toy_program work {job.output}"
    assert json.loads((job.directory / "job.json").read_text())["key"] == job.key
    assert (job.directory / "log.txt").read_text().startswith("$ python -m toy_program work")
    run_job(job)
    assert toys.calls(job) == ["work"]  # what is done is not done again


def test_a_job_s_failure_is_the_sentence_that_its_command_said(toys):
    job = toys.job("a", "fail")
    outcome = run_job(job)
    assert (outcome.status, outcome.reason) == ("failed", "the sky is green; paint it blue.")
    assert job.state != "done"


def test_a_job_that_was_begun_goes_on_and_one_without_a_way_to_begins_anew(toys):
    job = toys.job("a", "kill-itself", again="go-on")
    outcome = run_job(job)
    assert (outcome.status, outcome.reason) == ("killed", "was ended by SIGKILL")
    assert job.state == "begun"
    assert run_job(job).status == "done"
    assert toys.calls(job) == ["kill-itself", "go-on"]
    assert json.loads((job.directory / "done.json").read_text())["resumed"] is True
    job = toys.job("b", "fail")
    run_job(job)
    run_job(job)
    assert toys.calls(job) == ["fail"]


def test_a_job_begins_anew_where_its_paths_have_changed(toys):
    job = toys.job("a", "kill-itself", again="go-on")
    run_job(job)
    moved = replace(job, begin=Call((*job.begin.arguments, "elsewhere"), "toy_program"))
    assert moved.state == "begun"
    assert run_job(moved).status == "killed"  # from its beginning, where it kills itself
    assert run_job(moved).status == "done"
    assert toys.calls(moved) == ["kill-itself", "go-on"]


def test_a_job_that_cannot_go_on_says_what_to_delete(toys):
    job = toys.job("a", "kill-itself", again="fail")
    run_job(job)
    assert run_job(job).reason == (f"the sky is green; paint it blue. To begin this job anew, delete {job.directory}.")


# -------------------------------------------------------------------------------------------------------- this machine


def test_two_processes_work_at_the_same_time_and_share_the_cores(toys, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    a, b = toys.job("a"), toys.job("b")
    a, b = toys.job("a", "meet", others=[b]), toys.job("b", "meet", others=[a])
    threads = toys.job("threads", "threads")
    executed = execute([a, b, threads], LocalExecutor(2), silent)
    assert not executed.failed
    assert (threads.output / "threads").read_text() == "3"


def test_a_killed_command_is_tried_again_on_this_machine(toys):
    job = toys.job("a", "kill-itself", again="go-on")
    executed = execute([job], LocalExecutor(1), silent)
    assert executed.outcomes[job.key].status == "done"
    assert toys.calls(job) == ["kill-itself", "go-on"]


# ----------------------------------------------------------------------------------------------------------------- Ray


@pytest.fixture
def two_workers(toys, monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
def test_ray_runs_two_jobs_at_a_time_and_again_what_a_killed_worker_lost(toys, two_workers):
    a, b = toys.job("a"), toys.job("b")
    a, b = toys.job("a", "meet", others=[b]), toys.job("b", "meet", others=[a])
    killer = toys.job("killer", "kill-worker", needs=[a], again="go-on")
    wrong = toys.job("wrong", "fail", needs=[b])
    executor = RayExecutor("auto")
    assert executor.width == 2
    executed = execute(with_needs([killer, wrong]), executor, silent)
    assert executed.outcomes[a.key].status == executed.outcomes[b.key].status == "done"
    assert executed.outcomes[killer.key].status == "done"
    assert toys.calls(killer) == ["kill-worker", "go-on"]
    assert executed.outcomes[wrong.key].reason == "the sky is green; paint it blue."


def test_without_ray_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(LibraError, match=r"libra-gym\[ray\]"):
        RayExecutor("auto")
