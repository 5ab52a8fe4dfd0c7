"""`libra train --preset continuous`: real-valued counts from the bank to the model file, and back into counts."""

import csv
import json
import shlex
import signal

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from train_helpers import BACKBONE, libra, write_backbone, write_photos

from agents.libra_dqn.learner import Learner
from agents.registry import ALGORITHMS
from libra_gym import LibraError, WeighingTask, load_bank
from libra_gym.weigher import Weigher

SMALL = ("num_envs=16", "learning_starts=50", "batch_size=16", "update_every=20", "policy_kwargs.network.hidden=[16]")


def begin(bank, run, *arguments, epochs=2, preset="continuous"):
    changes = [text for change in SMALL for text in ("--set", change)]
    return ["train", "--bank", bank, "--preset", preset, "--out", run, "--epochs", epochs, *changes, *arguments]


@pytest.fixture(scope="module")
def whole(bank, tmp_path_factory):
    """A run of two epochs that nothing disturbed, pictures included."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    libra(*begin(bank, run))
    return run


@pytest.mark.parametrize("preset", ["continuous", "continuous_paper"])
def test_the_presets_differ_from_their_models_where_counts_need_it(preset):
    ours = ALGORITHMS["libra_dqn"].preset(preset)
    assert ours["env"]["env_id"] == "LibraWeighingContinuous-v0"
    if preset == "continuous_paper":
        paper = ALGORITHMS["libra_dqn"].preset("paper")
        assert {key: ours[key] for key in ours if key != "env"} == {key: paper[key] for key in paper if key != "env"}


def test_a_run_on_counts_keeps_no_quantizer_and_evaluates_to_the_same_figures(bank, whole, tmp_path):
    model = Weigher.load(whole / "best.safetensors")
    assert model.quantizer is None
    counts = load_bank(str(bank)).split("train").counts
    assert model.task == WeighingTask.counts(float(counts.max())).with_rewards(shape="error")
    with (whole / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert not {"validation/interval_accuracy", "validation/regret"} & rows[0].keys()
    said = libra("evaluate", whole, "--bank", bank, "--json", tmp_path / "figures.json")
    assert "nan" not in said.lower()
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["mae"] == pytest.approx(min(float(row["validation/mae"]) for row in rows))
    assert figures["interval_accuracy"] is None
    with pytest.raises(LibraError, match="real-valued"):
        libra("evaluate", whole, "--bank", bank, "--readout", "middle")


def test_its_pictures_are_drawn(whole):
    events = EventAccumulator(str(whole / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["images"]) == {"pictures/count_map", "pictures/weighing"}


def test_an_interrupted_run_ends_bit_for_bit_like_one_that_was_not(bank, whole, tmp_path, monkeypatch):
    learn_block, calls = Learner.learn_block, []

    def interrupted(learner):
        calls.append(learner)
        if len(calls) == 13:  # nine blocks of 16 weigh the 144 training patches
            signal.raise_signal(signal.SIGINT)
        return learn_block(learner)

    monkeypatch.setattr(Learner, "learn_block", interrupted)
    said = libra(*begin(bank, tmp_path / "run"), status=130)
    assert len(calls) == 13
    libra(*shlex.split(said.splitlines()[-1])[1:])
    for name in ("best", "last"):
        ours, theirs = (load_file(run / f"{name}.safetensors") for run in (tmp_path / "run", whole))
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_any_preset_can_be_put_on_counts(bank, tmp_path):
    change = ("--set", "env.env_id=LibraWeighingContinuous-v0")
    libra(*begin(bank, tmp_path / "run", *change, epochs=1, preset="default"))
    assert Weigher.load(tmp_path / "run" / "best.safetensors").quantizer is None


def test_photos_are_counted_straight_like_their_bank(tmp_path):
    photos, weights = write_photos(tmp_path / "photos"), tmp_path / "weights.safetensors"
    write_backbone(weights)
    data = ("--dataset", "folder", "--root", photos)
    own = ("--backbone", BACKBONE, "--weights", weights, "--workers", 0)
    libra("features", *data, "--split", "train+validation+test", *own, "--out", tmp_path / "bank")
    libra(*begin(tmp_path / "bank", tmp_path / "run", epochs=1))
    libra("evaluate", tmp_path / "run", "--bank", tmp_path / "bank", "--split", "test", "--json", tmp_path / "a.json")
    libra("evaluate", tmp_path / "run", *data, "--split", "test", "--weights", weights, "--json", tmp_path / "b.json")
    a, b = (json.loads((tmp_path / f"{name}.json").read_text()) for name in "ab")
    assert (a.pop("bank"), b.pop("bank")) == ("bank test", "folder test")
    assert a == b
