"""Figures land in CSV, TensorBoard and W&B, once each, whatever happens between."""

import csv
import json
import struct
import sys

import pytest
from banks import make_bank
from stable_baselines3.common.logger import Logger
from typer.testing import CliRunner

from experiments.cli import app
from experiments.tracking import EPOCH, CsvWriter
from libra_gym import LibraError

SMALL = ("num_envs=16", "learning_starts=50", "update_every=10", "batch_size=16", "policy_kwargs.network.hidden=[16]")


def libra(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def begin(tmp_path, *arguments):
    bank = tmp_path / "bank.safetensors"
    make_bank().save(bank)
    changes = [text for change in SMALL for text in ("--set", change)]
    return ["train", "--bank", bank, "--out", tmp_path / "run", "--epochs", 2, *changes, *arguments]


def read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def log(writer, epoch, **figures):
    logger = Logger(None, [writer])
    logger.record(EPOCH, epoch)
    for key, value in figures.items():
        logger.record(key, value)
    logger.dump(epoch)


def test_a_table_drops_the_epochs_that_are_gone_through_again(tmp_path):
    path = tmp_path / "progress.csv"
    first = CsvWriter(path)
    for epoch in (1, 2, 3):
        log(first, epoch, loss=10 * epoch)
    log(CsvWriter(path, last_epoch=2), 3, loss=33)
    assert [(row[EPOCH], row["loss"]) for row in read_csv(path)] == [("1", "10"), ("2", "20"), ("3", "33")]


def test_a_column_may_come_later(tmp_path):
    path = tmp_path / "progress.csv"
    writer = CsvWriter(path)
    log(writer, 1)
    log(writer, 2, loss=0.5)
    assert read_csv(path) == [{EPOCH: "1", "loss": ""}, {EPOCH: "2", "loss": "0.5"}]
    assert path.read_text().startswith(EPOCH)


def test_wandb_is_not_needed_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # an import of it fails
    monkeypatch.setattr("experiments.runs.pictures.draw", lambda *_: {})
    libra(*begin(tmp_path))
    (tmp_path / "run").rename(tmp_path / "other")
    with pytest.raises(LibraError, match=r"pip install 'libra-gym\[wandb\]'"):
        libra(*begin(tmp_path, "--wandb"))


@pytest.mark.slow
def test_an_offline_wandb_run_holds_config_curves_pictures_and_model_and_goes_on(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with monkeypatch.context() as patch:
        patch.setattr("experiments.runs.pictures.draw", lambda *_: {})  # the next ones are enough
        libra(*begin(tmp_path, "--wandb", "--epochs", 1))
    run = tmp_path / "run"
    libra("train", "--resume", run, "--epochs", 3)
    wandb.teardown()  # W&B's own process may still be writing when a run has ended; this waits for it, as an exit does

    identity = json.loads((run / "config.json").read_text())["wandb"]
    files = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
    assert [file.name for file in files] == [f"run-{identity}.wandb"] * 2
    records = [record for file in files for record in read_records(file)]

    configured = {key.key for record in records for key in record.run.config.update}
    assert {"algo", "seed", "settings", "fingerprint", "task", "quantizer"} <= configured
    rows = [
        {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    epochs = [(row[EPOCH], row["validation/mae"], row["_step"]) for row in rows if EPOCH in row]
    expected = [
        (int(row[EPOCH]), float(row["validation/mae"]), int(row["time/total_timesteps"]))
        for row in read_csv(run / "progress.csv")
    ]
    assert epochs == expected
    assert [step for *_, step in epochs] == sorted({step for *_, step in epochs})
    assert all(rows[-1][f"pictures/{name}._type"] == "image-file" for name in ("weighing", "count_map"))
    artifacts = [record.artifact for record in records if record.HasField("artifact")]
    kept = {entry.path for artifact in artifacts if artifact.type == "model" for entry in artifact.manifest.contents}
    assert {"best.safetensors", "config.json"} <= kept


def read_records(path):
    """The records of a `.wandb` file, which is a LevelDB log: 32 KiB blocks of chunks behind a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data[:4] == b":W&B"
    position, parts = 7, []
    while position + 7 <= len(data):
        if (room := 32768 - position % 32768) < 7:  # too little for a chunk: the rest of the block is padding
            position += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        parts.append(data[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield wandb_internal_pb2.Record.FromString(b"".join(parts))
            parts = []


def test_what_is_logged_between_epochs_makes_no_row(tmp_path):
    path = tmp_path / "progress.csv"
    writer = CsvWriter(path)
    log(writer, 1, loss=1)
    logger = Logger(None, [writer])
    logger.record("loss", 5)
    logger.dump(1)
    log(writer, 2, loss=2)
    assert [row["loss"] for row in read_csv(path)] == ["1", "2"]
    assert len(CsvWriter(path, last_epoch=1).rows) == 1
    path.write_text(f"{EPOCH},loss\n1,1\n,5\n2,2\n")  # as earlier versions wrote it
    assert [row["loss"] for row in CsvWriter(path, last_epoch=2).rows] == ["1", "2"]
