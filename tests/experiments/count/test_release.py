"""`libra release` as a user meets it."""

import json
import shutil

import numpy as np
import pytest
import torch
from banks import make_bank
from count_helpers import BACKBONE, libra, picture
from safetensors.torch import save_file

from experiments.card import card_markdown
from libra_gym.backbones import read_weights
from libra_gym.counter import Counter
from libra_gym.datasets import open_dataset
from libra_gym.errors import LibraError
from libra_gym.weigher import Weigher


def test_a_released_run_counts_like_the_run(run, folder, tmp_path):
    out = tmp_path / "model.safetensors"
    weights = run.parent / "weights.safetensors"
    card = tmp_path / "card.md"
    card.write_text("# Our model\n\n## Limits\nOnly noise.\n\n## Licence\nCC0\n\n## Thanks\nNobody.\n")
    options = ("--weights", weights, "--out", out, "--card", card, "--dataset", "folder", "--root", folder)
    done = libra("release", run, *options, "--split", "all")
    assert done.exit_code == 0, done.output
    assert "bank all:-1/6: 5 images" in done.stdout
    assert "float16" in done.stdout
    assert "float32" in done.stdout

    counter = Counter.load(out)
    assert counter.uncertainty is not None
    assert counter.uncertainty.photos == 5
    assert counter.card["limits"] == "Only noise."
    assert counter.card["licence"] == "CC0"
    assert counter.card["notes"] == {"thanks": "Nobody."}
    assert counter.card["recipe"]["backbone"] == BACKBONE
    assert str(run.parent) not in json.dumps(counter.card)
    shown = libra("count", "--card", "--model", out)
    assert shown.exit_code == 0
    for part in ("Only noise.", "CC0", "Nobody.", "5 validation photos", "gamma: 0", "hidden: 16"):
        assert part in shown.stdout.replace("\n", " ")

    whole = tmp_path / "whole.safetensors"
    assert libra("release", run, "--weights", weights, "--out", whole, "--dtype", "float32").exit_code == 0
    score = json.loads(json.dumps(Counter.load(whole).card["validation"]))
    photos = [photo.path for photo in open_dataset("folder", folder).photos("all:-1/6")]
    counts = [Counter.load(whole).count(path).count for path in photos]
    people = [10 + 5 * int(path.stem) for path in photos]
    assert np.abs(np.subtract(counts, people)).mean() == pytest.approx(score["mae"], rel=0.02)


def test_a_release_keeps_the_head_of_the_pretraining(run, backbone, tmp_path):
    state = {key: value.contiguous() for key, value in backbone.state_dict().items()}
    head = {"head.layer.weight": torch.randn(7, 512, 1, 1), "head.layer.bias": torch.randn(7)}
    save_file(state | head, tmp_path / "pretrained.safetensors")
    out = tmp_path / "model.safetensors"
    assert libra("release", run, "--weights", tmp_path / "pretrained.safetensors", "--out", out).exit_code == 0
    assert torch.equal(read_weights(out)["head.layer.bias"], head["head.layer.bias"])
    assert Counter.load(out).count(picture(0)).count > 0


def test_a_release_of_the_last_epoch(run, tmp_path):
    copied = shutil.copytree(run, tmp_path / "run")
    weigher = Weigher.load(copied / "best.safetensors")
    with torch.no_grad():
        weigher.network.out.bias[-1] += 100.0  # it ends at once, with nothing on the scale
    weigher.save(copied / "last.safetensors")
    counts = []
    for options in ((), ("--last",)):
        out = tmp_path / f"model{len(options)}.safetensors"
        weights = run.parent / "weights.safetensors"
        assert libra("release", copied, "--weights", weights, "--out", out, *options).exit_code == 0
        counts.append(Counter.load(out).count(picture(0)).count)
    assert counts[0] > 0
    assert counts[1] == 0


def test_a_release_needs_the_weights_that_the_run_was_trained_with(run, backbone, tmp_path):
    other = {key: value.contiguous().clone() for key, value in backbone.state_dict().items()}
    other["conv1.weight"] += 0.01
    save_file(other, tmp_path / "other.safetensors")
    done = libra("release", run, "--weights", tmp_path / "other.safetensors", "--out", tmp_path / "model.safetensors")
    assert isinstance(done.exception, LibraError)
    assert "other.safetensors" in str(done.exception)
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("options", [(), ("--bank",)])
def test_a_release_is_not_judged_by_a_bank_that_has_changed_since(run, tmp_path, options):
    """Photos that were moved from one split to the other have been learnt from."""
    copied = shutil.copytree(run, tmp_path / "run")
    config = json.loads((copied / "config.json").read_text())
    make_bank().save(tmp_path / "bank.safetensors")
    config["bank"] = str(tmp_path / "bank.safetensors")
    (copied / "config.json").write_text(json.dumps(config))
    given = [*options, tmp_path / "bank.safetensors"] if options else []
    weights = run.parent / "weights.safetensors"
    done = libra("release", copied, "--weights", weights, "--out", tmp_path / "model.safetensors", *given)
    assert isinstance(done.exception, LibraError)
    assert "has changed since the run began" in str(done.exception)
    assert "give --bank" not in str(done.exception)


def test_a_card_can_be_read_by_people(model):
    assert "80% interval from 30 validation photos" in card_markdown(Counter.load(model))
