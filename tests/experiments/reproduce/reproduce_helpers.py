"""Tiny data sets in the released layouts, and jobs that run a small program instead of `libra`."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from scipy.io import savemat

from experiments.reproduce.executors import Outcome
from experiments.reproduce.jobs import DONE, Call, Job
from experiments.reproduce.planner import Planner, Request

TOY = """
import os, pathlib, signal, sys, time
what, folder, *others = sys.argv[1:]
folder = pathlib.Path(folder)
folder.mkdir(parents=True, exist_ok=True)
with (folder / "calls").open("a") as file:
    file.write(what + "\\n")
calls = (folder / "calls").read_text().split()
if what == "fail":
    print("libra: the sky is green; paint it blue.")
    sys.exit(2)
if what == "kill-worker" and calls.count(what) == 1:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
if what == "kill-itself" and len(calls) == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if what == "meet":
    deadline = time.monotonic() + 200  # on a busy machine a worker takes its time to start
    while not all((pathlib.Path(other) / "calls").exists() for other in others):
        assert time.monotonic() < deadline, "the others never came"
        time.sleep(0.02)
if what == "threads":
    (folder / "threads").write_text(os.environ.get("OMP_NUM_THREADS", "unset"))
"""


class Toys:
    """Makes jobs that run the program above; what it does is its first argument."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        (folder / "toy_program.py").write_text(TOY)
        monkeypatch.setenv("PYTHONPATH", str(folder))

    def job(self, name, what="work", needs=(), others=(), again=None):
        """One that meets `others`, and goes on with `again` where it was begun before."""
        job = Job("train", name, {"name": name}, self.folder / "cache", tuple(needs), unit="agent", units=1)
        call = Call((what, str(job.output), *(str(other.output) for other in others)), "toy_program")
        resume = None if again is None else Call((again, str(job.output)), "toy_program")
        return replace(job, begin=call, resume=resume, mark="calls" if again else "")

    @staticmethod
    def calls(job):
        return (job.output / "calls").read_text().split()


def write_weights(file: Path, number: float = 0.0, scale: float | None = None) -> Path:
    """A file with the names of VGG16's tensors, but of one number each; `scale` is of the photos it learnt from."""
    says = None if scale is None else {"libra_gym.backbone": json.dumps({"settings": {"scale": scale}})}
    layers = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
    names = [f"features.{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    save_file({name: torch.tensor([number]) for name in names}, file, says)
    return file


def write_photo(photo: Path, labels: Path, content: bytes, points: np.ndarray, key: str) -> None:
    photo.parent.mkdir(parents=True, exist_ok=True)
    labels.parent.mkdir(parents=True, exist_ok=True)
    photo.write_bytes(content + "/".join(photo.parts[-3:]).encode())  # no two files are alike
    if key == "image_info":
        inner = np.empty((1, 1), dtype=[("location", object)])
        inner[0, 0] = (points,)
        outer = np.empty((1, 1), dtype=object)
        outer[0, 0] = inner
        savemat(labels, {key: outer})
    else:
        savemat(labels, {key: points})


def make_shanghaitech(root: Path, letter: str = "A", test: bool = True, content: bytes = b"no picture") -> Path:
    """Four training photos, the last of them for validation, and two to test with."""
    rng = np.random.default_rng(0)
    for part, numbers in {"train": (1, 2, 3, 10), "test": (1, 2) if test else ()}.items():
        home = root / "shanghaitech" / f"part_{letter}" / f"{part}_data"
        for k in numbers:
            points = rng.uniform(0, (96, 64), (15, 2))
            labels = home / "ground-truth" / f"GT_IMG_{k}.mat"
            write_photo(home / "images" / f"IMG_{k}.jpg", labels, content, points, "image_info")
    return root


def make_ucf_cc_50(root: Path) -> Path:
    for k in range(1, 51):
        labels = root / "ucf_cc_50" / f"{k}_ann.mat"
        write_photo(root / "ucf_cc_50" / f"{k}.jpg", labels, b"no picture", np.ones((3, 2)), "annPoints")
    return root


def make_planner(root: Path, out: Path, **settings) -> Planner:
    return Planner(Request(root=root, out=out, weights="random", **settings))


class Pretender:
    """An executor whose jobs are done at once, with figures that are made up, or fail."""

    width = at_once = 1

    def __init__(self, *, failing="", mae=60.0):
        self.failing, self.mae = failing, mae
        self.ran, self.closed = [], False
        self._ended = []

    def submit(self, job):
        self.ran.append(job)
        if self.failing and self.failing in job.title:
            self._ended.append((job, Outcome("failed", reason="the sky is green")))
            return
        figures = {"mae": self.mae, "rmse": 2 * self.mae, "game": [self.mae, 70.0, 80.0, 90.0]}
        job.directory.mkdir(parents=True, exist_ok=True)
        job.output.write_text(json.dumps(figures))
        record = {"seconds": 105.0, "unit": job.unit, "units": job.units, "resumed": False}
        (job.directory / DONE).write_text(json.dumps(record))
        self._ended.append((job, Outcome("done", 105.0)))

    def next(self):
        return self._ended.pop(0)

    def close(self, *, stop=False):
        self.closed = True
