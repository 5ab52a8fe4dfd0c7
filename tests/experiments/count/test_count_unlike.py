"""What `libra count` says of photos that are far from those that a model knows."""

import json

import cv2
import pytest
from count_helpers import libra, picture

from experiments import counting
from libra_gym.counter import Counter
from libra_gym.datasets import open_dataset
from libra_gym.kind import Kind


def test_a_photo_far_larger_than_those_of_the_training_gets_a_hint(run, folder, clip, tmp_path):
    out = tmp_path / "model.safetensors"
    assert libra("release", run, "--weights", run.parent / "weights.safetensors", "--out", out).exit_code == 0
    (learnt,) = open_dataset("folder", folder).photos("all:1/6")
    people = len(learnt.points())
    assert Counter.load(out).kind == Kind(longest_side=128, shortest_side=128, fewest=people, most=people)

    cv2.imwrite(str(tmp_path / "huge.png"), picture(0, 64, 260))
    cv2.imwrite(str(tmp_path / "twice.png"), picture(0, 64, 256))
    photos = (tmp_path / "huge.png", tmp_path / "twice.png", folder / "0.jpg")
    entries = json.loads(libra("count", *photos, "--model", out, "--json").stdout)
    assert ["longer side" in entry.get("hint", "") for entry in entries] == [True, False, False]
    assert "260 pixels" in entries[0]["hint"]
    assert "`--max-side 128`" in entries[0]["hint"]
    assert f"{photos[0]}: its longer side" in libra("count", *photos, "--model", out).stdout
    made_smaller = libra("count", photos[0], "--model", out, "--max-side", "128", "--json")
    assert "longer side" not in made_smaller.stdout
    assert "hint" not in libra("count", clip, "--model", out, "--json").stdout


@pytest.fixture
def knowing(model, tmp_path):
    """A function that makes a model which knows its photos to be of this range."""

    def make(**kind):
        counter = Counter.load(model)
        counter.weigher.about.update(Kind(**kind).to_dict())
        counter.save(tmp_path / "knowing.safetensors")
        return tmp_path / "knowing.safetensors"

    return make


@pytest.fixture
def notes(monkeypatch):
    """What is written below the titles of overlays."""
    told = []
    draw = counting.overlay_figure
    monkeypatch.setattr(counting, "overlay_figure", lambda *given: told.append(given[-1]) or draw(*given))
    return told


def count_one(*arguments):
    (entry,) = json.loads(libra("count", *arguments, "--json").stdout)
    return entry


def test_a_photo_like_those_of_the_training_has_an_interval(model, knowing, notes, folder, tmp_path):
    people = round(Counter.load(model).count(folder / "0.jpg").count)
    like = knowing(longest_side=128, shortest_side=128, fewest=people, most=people)
    entry = count_one(folder / "0.jpg", "--model", like, "--overlay", tmp_path)
    assert "hint" not in entry
    assert entry["low"] < entry["high"]
    assert notes == [""]


def test_a_photo_unlike_those_of_the_training_has_none(model, knowing, notes, folder, tmp_path):
    people = round(Counter.load(model).count(folder / "0.jpg").count)
    unlike = knowing(longest_side=128, shortest_side=128, fewest=3 * people, most=10**6)
    entry = count_one(folder / "0.jpg", "--model", unlike, "--overlay", tmp_path)
    assert f"fewer than {3 * people:,} people" in entry["hint"]
    assert entry["low"] is entry["high"] is None
    assert entry["count"] == pytest.approx(people, abs=0.51)
    assert notes == [f"no interval: no photo that the model learnt from had fewer than {3 * people:,} people"]
    table = libra("count", folder / "0.jpg", "--model", unlike).stdout
    assert "–" in table
    assert "80% interval from" not in table


def test_parts_and_frames_are_told_only_where_they_are_too_large(knowing, notes, folder, clip, tmp_path):
    part = (folder / "0.jpg", "--region", "0,0,64,64", "--overlay", tmp_path)
    far = {"shortest_side": 400, "fewest": 10**6, "most": 10**6}
    for source in (part, (clip,)):
        assert "hint" not in count_one(*source, "--model", knowing(longest_side=900, **far))
        entry = count_one(*source, "--model", knowing(longest_side=20, **far))
        assert "longer side has 64 pixels" in entry["hint"]
        assert entry["low"] is None
    assert notes[1].startswith("its longer side has 64 pixels")  # a part has no interval to lose


def test_a_model_that_does_not_know_its_photos_gives_no_hint(model, tmp_path):
    assert Counter.load(model).kind.longest_side is None
    cv2.imwrite(str(tmp_path / "huge.png"), picture(0, 64, 1024))
    assert "hint" not in libra("count", tmp_path / "huge.png", "--model", model, "--json").stdout
