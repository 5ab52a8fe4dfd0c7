"""`libra pretrain`: a run that is killed goes on as if nothing had been, and what comes out is a backbone."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import cv2
import pytest
import torch
from pretrain_helpers import draw_crowds, libra, pretraining_of, rows
from safetensors import safe_open
from typer.testing import CliRunner

from experiments.cli import app
from libra_gym.backbones import load_backbone, read_weights

EPOCHS = 3


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return draw_crowds(tmp_path_factory.mktemp("crowd"), 11)


def begin(root, out, *more):
    return pretraining_of(root, out, "--epochs", str(EPOCHS), *more)


def untyped(command, *options):
    """A command without these options and their values."""
    given = iter(command)
    return [text for text in given if text not in options or not next(given)]


@pytest.fixture(scope="module")
def whole(root, tmp_path_factory):
    """A run that nothing disturbed."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    libra(*begin(root, run))
    return run


def test_a_run_tells_before_and_after(whole):
    assert [row["rollout/epoch"] for row in rows(whole)] == ["0", "1", "2", "3"]
    assert all(float(row["validation/mae_argmax"]) >= 0 for row in rows(whole))
    assert list((whole / "tensorboard").glob("events*"))


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit(root, whole, tmp_path):
    run = tmp_path / "killed"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.cli", *begin(root, run)], env=environment, stdout=subprocess.DEVNULL
    )
    while process.poll() is None and not (run / "progress.csv").exists():
        time.sleep(0.002)
    while process.poll() is None and len(rows(run)) < 2:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    libra("pretrain", "--resume", run)
    ours, theirs = (read_weights(path / "last.safetensors") for path in (run, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert [row["validation/mae"] for row in rows(run)] == [row["validation/mae"] for row in rows(whole)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_readers_leave_ctrl_c_to_the_run(root, tmp_path, number):
    """A terminal sends Ctrl-C, and a cluster its polite request, to the processes that read photos as well."""
    run, long = tmp_path / "run", ("--cache", "none", "--set", "crops_per_photo=2000")
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.cli", *begin(root, run, *long)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    while process.poll() is None and not ((run / "progress.csv").exists() and rows(run)):
        time.sleep(0.01)
    time.sleep(3)  # in the midst of the first epoch
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert "libra pretrain --resume" in said


def test_ctrl_c_says_how_to_go_on(root, whole, tmp_path, monkeypatch):
    from agents.pretraining import Pretrainer

    learn, calls = Pretrainer._learn, []

    def interrupted(trainer, *batch):
        calls.append(trainer)
        if len(calls) == 4:  # within the second epoch
            signal.raise_signal(signal.SIGINT)
        return learn(trainer, *batch)

    monkeypatch.setattr(Pretrainer, "_learn", interrupted)
    said = libra(*begin(root, tmp_path / "run"), status=130)
    assert "stopped after 1 of 3 epochs" in said
    libra(*shlex.split(said.splitlines()[-1])[1:])
    ours, theirs = (read_weights(path / "last.safetensors") for path in (tmp_path / "run", whole))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert len(calls) == 3 * 3  # no batch of the second epoch was learnt twice
    assert [row["train/loss"] for row in rows(tmp_path / "run")] == [row["train/loss"] for row in rows(whole)]


def test_a_long_epoch_is_saved_on_the_way(root, whole, tmp_path, monkeypatch):
    from agents.pretraining import Pretrainer
    from experiments.runs import pretraining

    class Killed(Exception):
        pass

    learn, calls = Pretrainer._learn, []

    def killed(trainer, *batch):
        calls.append(trainer)
        if len(calls) == 6:  # the last batch of the second epoch
            raise Killed
        return learn(trainer, *batch)

    monkeypatch.setattr(Pretrainer, "_learn", killed)
    monkeypatch.setattr(pretraining, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(Killed):
        CliRunner().invoke(app, begin(root, tmp_path / "run"), catch_exceptions=False)
    libra("pretrain", "--resume", tmp_path / "run")
    assert len(calls) == 3 * 3 + 1
    ours, theirs = (read_weights(path / "last.safetensors") for path in (tmp_path / "run", whole))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_what_comes_out_goes_into_features_and_another_pretraining(root, whole, tmp_path):
    best = whole / "best.safetensors"
    backbone = load_backbone("mobilenet_v3_large", best)
    assert backbone.weights_hash != load_backbone("mobilenet_v3_large", "random").weights_hash
    libra(
        "features", "--dataset", "folder", "--root", root, "--backbone", "mobilenet_v3_large", "--weights", best,
        "--out", tmp_path / "bank", "--workers", "0",
    )  # fmt: skip
    again = begin(root, tmp_path / "next", "--init", str(best), "--cache", "ram")
    assert "--weights has no use where --init" in libra(*again, status=2)
    libra(*(text for text in again if text not in ("--weights", "random")))
    before = rows(tmp_path / "next")[0]
    best_row = min(rows(whole), key=lambda row: float(row["validation/mae"]))
    assert float(before["validation/mae"]) == pytest.approx(float(best_row["validation/mae"]), rel=1e-3)


def test_another_data_set_is_learnt_from_too_and_again_when_the_run_goes_on(root, whole, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(root, other)
    copied = libra(*begin(root, tmp_path / "refused", "--also", f"folder:validation={other}"), status=2)
    assert "which is the same photo" in " ".join(copied.split())
    for path in other.glob("*.png"):  # photos of their own
        assert cv2.imwrite(str(path), cv2.imread(str(path))[::-1])
    run = tmp_path / "run"
    libra(*begin(root, run, "--also", f"folder:validation={other}", "--epochs", "1"))
    libra("pretrain", "--resume", run, "--epochs", "2")
    photos = sum(1 for _ in root.glob("*.png"))
    assert [int(row["train/updates"]) for row in rows(run)] == [0, -(-photos // 4), 2 * -(-photos // 4)]
    with safe_open(run / "last.safetensors", "pt") as file:
        about = json.loads(file.metadata()["libra_gym.backbone"])
    assert about["data"]["also"] == ["folder:validation"]


def test_photos_keep_the_size_that_the_weights_learnt_from(root, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    libra(*pretraining_of(root, first, "--epochs", "1", "--set", "scale=1.5", "--cache", "none"))
    going_on = pretraining_of(root, second, "--epochs", "1", "--init", first / "last.safetensors", "--cache", "none")
    libra(*untyped(going_on, "--weights"))
    assert json.loads((second / "config.json").read_text())["settings"]["scale"] == 1.5


def test_a_run_that_fails_before_it_learns_may_be_tried_again(root, tmp_path, monkeypatch):
    from agents.pretraining import Pretrainer

    def fail(self):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(Pretrainer, "evaluate", fail)
        libra(*begin(root, tmp_path / "run"), status=1)
    assert not (tmp_path / "run").exists()


def test_a_moved_run_finds_its_cache(root, tmp_path):
    libra(*begin(root, tmp_path / "run", "--epochs", "1"))
    cached = sorted(path.name for path in (tmp_path / "run" / "stem").iterdir())
    (tmp_path / "run").rename(tmp_path / "moved")
    libra("pretrain", "--resume", tmp_path / "moved", "--epochs", "2")
    assert not (tmp_path / "run").exists()
    assert sorted(path.name for path in (tmp_path / "moved" / "stem").iterdir()) == cached


def test_a_finished_run_is_left_alone(root, whole):
    assert "holds a run already" in libra(*begin(root, whole), status=2)


@pytest.mark.usefixtures("bf16")
def test_a_cpu_computes_in_bf16_if_told_to(root, whole, tmp_path):
    command = begin(root, tmp_path / "run", "--precision", "bf16", "--cache", "none", "--workers", "0")
    # Accelerate's precision is that of the whole process.
    subprocess.run([sys.executable, "-m", "experiments.cli", *command], check=True, capture_output=True)
    single, half = (float(rows(run)[0]["validation/mae"]) for run in (whole, tmp_path / "run"))
    assert half != single
    assert half == pytest.approx(single, rel=0.05)
    weights = read_weights(tmp_path / "run" / "last.safetensors")
    assert {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()} == {torch.float32}


def test_mistakes_are_named(root, tmp_path, whole):
    out = tmp_path / "run"
    assert "no layer 'conv9_9'" in libra(*begin(root, out), "--train-from", "conv9_9", status=2)
    assert not out.exists()
    assert "no setting 'crops'" in libra(*begin(root, tmp_path / "b"), "--set", "crops=1", status=2)
    assert "needs --dataset and --out" in libra("pretrain", status=2)
    assert "leave out --seed" in libra("pretrain", "--resume", whole, "--seed", "1", status=2)
    assert "is no run of `libra pretrain`" in libra("pretrain", "--resume", tmp_path / "nowhere", status=2)
    assert "no training in fp16" in libra(*begin(root, tmp_path / "d"), "--precision", "fp16", status=2)
    assert "dense, street" in libra(*begin(root, tmp_path / "e"), "--weights", "crowd", status=2)
    assert "are not those of" in libra(*begin(root, tmp_path / "e"), "--weights", "dense", status=2)
    assert "crowded is 1.5, but it must be" in libra(*begin(root, tmp_path / "e"), "--set", "crowded=1.5", status=2)
    assert "names no data set" in libra(*begin(root, tmp_path / "f"), "--also", "folder", status=2)
    assert "judged by" in libra(*begin(root, tmp_path / "f"), "--also", f"folder:all={root}", status=2)
    twice = "leave it out"
    assert twice in libra(*begin(root, tmp_path / "g"), "--set", "epochs=20", status=2)
    assert twice in libra(*begin(root, tmp_path / "g"), "--set", "method=regression", status=2)
    assert twice in libra(*begin(root, tmp_path / "g"), "--set", "train_from=conv1_1", status=2)
    cells = ("--method", "classification", "--set", "cell_loss=0.5")
    frozen = untyped(begin(root, tmp_path / "g"), "--train-from")
    assert "cell_loss needs a backbone that learns" in libra(*frozen, *cells, status=2)
    assert not (tmp_path / "g").exists()  # so that the corrected command may be run
    another = ("--method", "regression", "--init", whole / "best.safetensors")
    assert "is of another method" in libra(*untyped(frozen, "--weights"), *another, status=2)
    assert "no device 'tpu'" in libra(*begin(root, tmp_path / "c"), "--device", "tpu", status=2)
