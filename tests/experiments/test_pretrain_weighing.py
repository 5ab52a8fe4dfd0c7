"""`libra pretrain --method weighing`: a finished model learns on as a whole, and what comes out counts photos."""

import json

import pytest
import torch
from pretrain_helpers import draw_split_crowds, libra, make_model, rows
from typer.testing import CliRunner

from experiments.cli import app
from experiments.runs.counted import discount_of
from libra_gym import LibraError
from libra_gym.counter import Counter

SCALE = 1.5


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return draw_split_crowds(tmp_path_factory.mktemp("crowd"))


@pytest.fixture(scope="module")
def data(root):
    return "--dataset", "folder", "--root", root


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    return make_model(data, tmp_path_factory.mktemp("model"), SCALE)


def learn(data, model, out, *more):
    return (
        "pretrain", "--method", "weighing", *data, "--backbone", "mobilenet_v3_large", "--init", model, "--train-from",
        "features.15", "--epochs", "2", "--set", "crop=64", "--cache", "none", "--workers", "0", "--device", "cpu",
        "--out", out, *more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(data, model, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "weighing"
    libra(*learn(data, model, run))
    return run


def mae(model, data, tmp_path) -> float:
    libra("evaluate", model, *data, "--json", tmp_path / "score.json")
    return float(json.loads((tmp_path / "score.json").read_text())["mae"])


def test_it_begins_with_the_model_as_it_is_and_ends_with_one_that_counts(data, model, run, tmp_path):
    before, _, after = (float(row["validation/mae"]) for row in rows(run))
    assert [row["validation/mae_weighed"] for row in rows(run)] == [row["validation/mae"] for row in rows(run)]
    assert all(float(row["validation/mae_expectation"]) >= 0 for row in rows(run))
    assert before == pytest.approx(mae(model, data, tmp_path), rel=1e-3)
    assert after == pytest.approx(mae(run / "last.safetensors", data, tmp_path), rel=1e-3)


def test_backbone_scale_and_one_step_head_have_learnt(model, run):
    first, last = Counter.load(model), Counter.load(run / "last.safetensors")
    assert last.scale == first.scale == SCALE
    assert last.kind == first.kind
    assert last.weigher.about["dataset"] == first.weigher.about["dataset"]
    assert last.backbone.weights_hash != first.backbone.weights_hash
    assert last.weigher.about["weights"] == last.backbone.weights_hash
    assert last.weigher.quantizer == first.weigher.quantizer
    ours, theirs = (counter.weigher.network.state_dict() for counter in (last, first))
    assert not torch.equal(ours["out.weight"], theirs["out.weight"])
    assert torch.equal(ours["mean"], theirs["mean"])


def test_a_run_goes_on_as_if_nothing_had_been(data, model, run, tmp_path, monkeypatch):
    from agents.pretraining import Pretrainer
    from experiments.runs import pretraining

    class Killed(Exception):
        pass

    learn_batch, calls = Pretrainer._learn, []

    def killed(trainer, *batch):
        calls.append(trainer)
        if len(calls) == 9:  # of twelve, in the second epoch
            raise Killed
        return learn_batch(trainer, *batch)

    monkeypatch.setattr(Pretrainer, "_learn", killed)
    monkeypatch.setattr(pretraining, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(Killed):
        CliRunner().invoke(app, list(map(str, learn(data, model, tmp_path / "run"))), catch_exceptions=False)
    begun = []
    monkeypatch.setattr(pretraining.Display, "begin", lambda display, done, crops: begun.append((done, crops)))
    libra("pretrain", "--resume", tmp_path / "run")
    ((done, crops),) = begun  # what was done before is not taken for the speed of now
    assert 1 < done < 2
    assert crops == round(done * 6)
    ours, theirs = (Counter.load(path / "last.safetensors") for path in (tmp_path / "run", run))
    assert ours.backbone.weights_hash == theirs.backbone.weights_hash
    assert torch.equal(ours.weigher.network.out.weight, theirs.weigher.network.out.weight)


def test_it_is_released_with_an_interval_and_a_card(data, run, tmp_path):
    said = libra("release", run, "--last", "--out", tmp_path / "whole.safetensors", *data)
    assert "80% interval from 5 validation photos" in said
    released = Counter.load(tmp_path / "whole.safetensors")
    assert released.uncertainty is not None
    assert released.card["data"]["trained on"] == "train"
    assert "weighing" in released.card["recipe"]["algorithm"]
    assert "float16" in said
    # The head of its pre-training is in it too, so that it can learn on.
    libra(*learn(data, tmp_path / "whole.safetensors", tmp_path / "again", "--epochs", "1"))


def test_photos_that_were_learnt_from_are_not_taken_to_judge_by(model, tmp_path):
    """Photos that are moved to `validation` after the training would make the interval of a model far too narrow."""
    crowd = draw_split_crowds(tmp_path)
    data = "--dataset", "folder", "--root", crowd
    libra(*learn(data, model, tmp_path / "run", "--epochs", "1"))
    for kind in ("png", "csv"):
        (crowd / "train" / f"5.{kind}").rename(crowd / "validation" / f"new.{kind}")
    changed = "The photos or their dots have changed since the run began"
    assert changed in libra("release", tmp_path / "run", "--last", "--out", tmp_path / "m.safetensors", status=2)
    assert changed in libra("pretrain", "--resume", tmp_path / "run", "--epochs", "2", status=2)


def test_too_few_photos_to_judge_by_are_told_before_a_training(model, tmp_path):
    crowd = draw_split_crowds(tmp_path)
    for kind in ("png", "csv"):
        (crowd / "validation" / f"4.{kind}").unlink()
    data = "--dataset", "folder", "--root", crowd
    assert "The validation photos are 4: `libra release` needs at least 5" in libra(
        *learn(data, model, tmp_path / "run")
    )
    said = libra("release", tmp_path / "run", "--last", "--out", tmp_path / "m.safetensors", status=2)
    assert "was judged on 4 validation photos" in said


def test_a_run_is_shown_like_one_of_an_agent(data, run, tmp_path):
    libra("show", run, "--image", data[-1] / "train" / "3.png", "--out", tmp_path)
    assert (tmp_path / "weighing.png").is_file()
    assert discount_of(run) == 0.0


def test_another_backbone_may_be_put_under_the_scale(data, model, run, tmp_path):
    libra(*learn(data, model, tmp_path / "run", "--weights", run / "last.safetensors", "--epochs", "1"))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["weights"] == str(run / "last.safetensors")
    assert config["init"] == str(model)


def test_imagenets_weights_too_go_under_the_scale_if_they_are_asked_for(data, model, tmp_path, monkeypatch):
    def download(*_):
        raise LibraError("would download ImageNet's weights")

    monkeypatch.setattr("libra_gym.backbones._lay_out", download)
    asked = libra(*learn(data, model, tmp_path / "run", "--weights", "imagenet"), status=2)
    assert "would download ImageNet's weights" in asked


def test_the_backbone_is_the_models(data, model, tmp_path):
    command = list(learn(data, model, tmp_path / "run", "--epochs", "1"))
    place = command.index("--backbone")
    libra(*command[:place], *command[place + 2 :])
    assert json.loads((tmp_path / "run" / "config.json").read_text())["backbone"] == "mobilenet_v3_large"


def test_mistakes_are_named(data, model, run, tmp_path):
    out = tmp_path / "run"
    command = [part for part in learn(data, model, out) if part not in ("--init", model)]
    assert "give it as --init" in libra(*command, "--weights", "random", status=2)
    assert "epsilon is 2, but it must be" in libra(*learn(data, model, out), "--set", "epsilon=2", status=2)
    levels = learn(data, model, out, "--backbone", "mobilenet_v3_large:multi", "--train-from", "features.5")
    assert "features a patch, but the backbone gives" in libra(*levels, status=2)
    integers = ("--set", "bins=integer", "--set", "kernel=points")
    assert "leave bins out" in libra(*learn(data, model, out), *integers, status=2)
    assert "leave out --weights" in libra("release", run, "--weights", model, "--out", f"{out}.safetensors", status=2)
    assert not out.exists()
