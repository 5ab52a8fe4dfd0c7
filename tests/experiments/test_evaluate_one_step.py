"""`libra evaluate` on the one-step head that a backbone was pre-trained with, alone or beside a scale."""

import csv
import errno
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from pretrain_helpers import draw_split_crowds, libra, make_model, rows
from safetensors import safe_open
from safetensors.torch import save_file

SCALE = 1.5


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return "--dataset", "folder", "--root", draw_split_crowds(tmp_path_factory.mktemp("crowd"))


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    return make_model(data, tmp_path_factory.mktemp("model"), SCALE)


@pytest.fixture
def figures(tmp_path):
    """What `libra evaluate` says of a model."""

    def evaluate(*arguments):
        libra("evaluate", *arguments, "--json", tmp_path / "figures.json")
        return json.loads((tmp_path / "figures.json").read_text())

    return evaluate


@pytest.mark.parametrize(("readout", "logged"), [("expectation", "mae_expectation"), ("mean", "mae_argmax")])
def test_a_pretrained_file_counts_photos_as_the_pretraining_judged_it(model, data, figures, readout, logged):
    run = model.parent / "backbone"
    judged = float(rows(run)[-1][f"validation/{logged}"])
    assert figures(run / "last.safetensors", *data, "--readout", readout)["mae"] == pytest.approx(judged, rel=1e-3)


def test_a_run_of_pretraining_counts_with_its_best_epoch(model, data, figures):
    run = model.parent / "backbone"
    judged = min(float(row["validation/mae_expectation"]) for row in rows(run))
    assert figures(run, *data, "--readout", "expectation")["mae"] == pytest.approx(judged, rel=1e-3)


def test_the_head_in_a_released_model_counts_as_it_did_beside_its_backbone(model, data, figures):
    bank, run = model.parent / "bank", model.parent / "backbone"
    alone = figures(run / "last.safetensors", "--bank", bank, "--readout", "expectation")
    within = figures(model, "--bank", bank, "--one-step", "--readout", "expectation")
    assert within["mae"] == pytest.approx(alone["mae"], rel=1e-5)
    weighed = figures(model, "--bank", bank)
    assert "mean_steps" in weighed
    assert "mean_steps" not in within
    assert weighed["mae"] != pytest.approx(within["mae"], rel=1e-5)


def test_a_pretrained_file_has_figures_and_a_gallery(model, tmp_path):
    backbone, bank = model.parent / "backbone" / "last.safetensors", model.parent / "bank"
    libra("figures", backbone, "--bank", bank, "--out", tmp_path / "figures")
    libra("gallery", backbone, "--bank", bank, "--cases", "1", "--out", tmp_path / "gallery")
    assert {"counts.png", "intervals.png"} == {path.name for path in (tmp_path / "figures").iterdir()}
    assert (tmp_path / "gallery" / "causes.png").exists()


def test_a_bank_of_other_weights_is_refused(model, data):
    said = libra("evaluate", model.parent / "backbone" / "last.safetensors", "--bank", "demo", status=2)
    assert "make a bank with the model's own weights" in said


def test_models_without_such_a_head_are_told_apart(model, data, tmp_path):
    bank = ("--bank", model.parent / "bank")
    assert "has no one-step head" in libra("evaluate", model.parent / "agent", *bank, "--one-step", status=2)

    with safe_open(model, framework="pt") as file:
        about = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    headless = {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}
    save_file(headless, tmp_path / "headless.safetensors", about)
    assert "has no one-step head" in libra("evaluate", tmp_path / "headless.safetensors", *bank, "--one-step", status=2)

    shorter = {name: tensor[:-1] if name.startswith("head.") else tensor for name, tensor in tensors.items()}
    save_file({name: tensor.contiguous() for name, tensor in shorter.items()}, tmp_path / "other.safetensors", about)
    said = libra("evaluate", tmp_path / "other.safetensors", *bank, "--one-step", status=2)
    assert "not of its scale's intervals" in said


def test_a_head_of_windows_cannot_be_read_patch_by_patch(data, tmp_path):
    libra(
        "pretrain", *data, "--method", "tasselnetv2", "--backbone", "mobilenet_v3_large", "--weights", "random",
        "--train-from", "head", "--epochs", "1", "--set", "crop=64", "--device", "cpu", "--out", tmp_path / "run",
    )  # fmt: skip
    assert "windows of several patches" in libra("evaluate", tmp_path / "run", *data, status=2)


def test_photos_are_evaluated_as_they_are_counted(model, data, tmp_path):
    root = data[-1]
    libra("evaluate", model, *data, "--csv", tmp_path / "evaluated.csv")
    with (tmp_path / "evaluated.csv").open() as file:
        evaluated = {Path(row["name"]).name: float(row["count"]) for row in csv.DictReader(file)}
    photos = sorted(path for path in (root / "validation").iterdir() if path.suffix == ".png")
    entries = json.loads(libra("count", *photos, "--model", model, "--json"))
    counted = {Path(entry["file"]).name: entry["count"] for entry in entries}
    assert counted == pytest.approx(evaluated, abs=0.006)  # both are rounded


def test_what_cannot_be_read_is_said_before_any_photo_is_looked_at(model, data, tmp_path, monkeypatch):
    monkeypatch.setattr("libra_gym.features.build_features", None)
    assert "no readout 'middle'" in libra("evaluate", model, *data, "--one-step", "--readout", "middle", status=2)
    root = tmp_path / "photos"
    shutil.copytree(data[-1], root)
    lost = next((root / "validation").glob("*.csv"))
    lost.unlink()
    said = libra("evaluate", model, "--dataset", "folder", "--root", root, status=2)
    assert "are missing" in said


def test_a_full_disk_of_temporary_files_is_told_as_what_it_is(model, data, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("libra_gym.features.storage.os.fsync", full)
    said = " ".join(libra("evaluate", model, *data, status=2).split())
    assert f"no room for temporary files in {tempfile.gettempdir()!r}" in said
    assert "--out" not in said


def test_a_damaged_photo_can_be_left_out_by_its_name(model, data, tmp_path):
    root = tmp_path / "photos"
    shutil.copytree(data[-1], root)
    bad = next((root / "validation").glob("*.png"))
    bad.write_bytes(bad.read_bytes()[:200])
    said = " ".join(libra("evaluate", model, "--dataset", "folder", "--root", root, status=2).split())
    assert "leave such photos out by their names" in said
    assert "what is finished is kept" not in said
    libra("evaluate", model, "--dataset", "folder", "--root", root, "--split", f"validation:-validation/{bad.name}")
