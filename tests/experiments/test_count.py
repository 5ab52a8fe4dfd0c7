"""`libra count` and `libra release` as a user meets them."""

import csv
import json
import os
import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from banks import make_bank
from rich.console import Console
from safetensors.torch import save_file
from typer.testing import CliRunner

from experiments import counting
from experiments.benchmarks import BenchOptions
from experiments.benchmarks import count as count_benchmark
from experiments.card import card_markdown
from experiments.cli import app
from experiments.counting import find_files, parse_region
from experiments.runs import RunDirectory, plan, train
from libra_gym import models
from libra_gym.backbones import load_backbone, preprocess, read_weights
from libra_gym.counter import Counter
from libra_gym.datasets import open_dataset
from libra_gym.errors import LibraError
from libra_gym.features import build_features
from libra_gym.kind import Kind
from libra_gym.network import NetworkSettings, ScaleNetwork, standard
from libra_gym.quantizer import Quantizer
from libra_gym.rendering import overlay
from libra_gym.task import WeighingTask
from libra_gym.uncertainty import Uncertainty
from libra_gym.weigher import Weigher

BACKBONE = "resnet18"


def picture(seed, height=96, width=128):
    small = np.random.default_rng(seed).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def libra(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def backbone():
    return load_backbone(BACKBONE, "random")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six photos with head dots, a bad one, and a video."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(6):
        cv2.imwrite(str(root / f"{number}.jpg"), picture(number))
        np.savetxt(root / f"{number}.csv", rng.uniform(0, (128, 96), (10 + 5 * number, 2)), delimiter=",")
    return root


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("video") / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, (64, 64))
    for number in range(12):
        writer.write(picture(number, 64, 64))
    writer.release()
    return path


@pytest.fixture(scope="module")
def model(backbone, tmp_path_factory):
    """A counter that has learnt nothing."""
    torch.manual_seed(0)
    network = ScaleNetwork(NetworkSettings(channels=backbone.channels, hidden=(32,), q_scale=1.0, init_std=None))
    with torch.inference_mode():
        network.normalise(*standard(backbone(preprocess(picture(0))[None])[0].flatten(1).mT))
    weigher = Weigher(network, WeighingTask.intervals(40), Quantizer.log(40))
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    Counter(backbone, weigher, Uncertainty(0.8, 1.0, 0.25, 30, 0.8, 0.9, 0.7), {"limits": "None."}).save(path)
    return path


# --------------------------------------------------------------------------------------------------------------- count


def test_json_is_all_that_is_printed(folder, model):
    done = libra("count", folder / "1.jpg", folder / "2.jpg", "--model", model, "--json")
    assert done.exit_code == 0, done.output
    entries = json.loads(done.stdout)
    assert [entry["file"] for entry in entries] == [str(folder / "1.jpg"), str(folder / "2.jpg")]
    counter = Counter.load(model)
    for entry in entries:
        assert set(entry) == {"file", "count", "low", "high", "seconds"}
        counted = counter.count(entry["file"])
        assert entry["count"] == pytest.approx(counted.count, abs=0.01)
        assert (entry["low"], entry["high"]) == pytest.approx((counted.low, counted.high), abs=0.01)
    assert entries[0]["count"] != entries[1]["count"]


def test_a_bad_photo_does_not_stop_the_others(folder, model, tmp_path):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"not a photo")
    done = libra("count", bad, folder / "1.jpg", "absent.png", tmp_path / "no*.jpg", "--model", model, "--json")
    assert done.exit_code == 1
    first, second, third, fourth = json.loads(done.stdout)
    assert fourth["error"] == "No file has a name of this pattern."
    assert set(first) == set(third) == {"file", "error"}
    assert "bad.jpg" in first["error"]
    assert "absent.png" in third["error"]
    assert second["count"] >= 0


def test_a_table_has_the_count_and_its_interval(folder, model, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"")
    done = libra("count", folder / "1.jpg", tmp_path / "bad.jpg", "--model", model)
    assert done.exit_code == 1
    assert f"{Counter.load(model).count(folder / '1.jpg').count:,.0f}" in done.stdout
    assert "80% interval" in done.stdout
    assert "30 validation photos" in done.stdout.replace("\n", " ")
    assert "bad.jpg" in done.stderr


def test_overlays_of_photos_with_one_name_do_not_overwrite_each_other(folder, model, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    cv2.imwrite(str(other / "1.jpg"), picture(9))
    out = tmp_path / "deep" / "pictures"
    done = libra("count", folder / "1.jpg", other / "1.jpg", "--model", model, "--overlay", out, "--json")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in out.iterdir()) == ["1-count-2.png", "1-count.png"]
    for path in out.iterdir():
        assert cv2.imread(str(path)).std() > 10


def test_the_frames_of_a_video(clip, model, tmp_path):
    done = libra("count", clip, "--model", model, "--every", 5, "--overlay", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    entries = json.loads(done.stdout)
    assert [entry["frame"] for entry in entries] == [0, 5, 10]
    assert [entry["time"] for entry in entries] == [0.0, 0.5, 1.0]
    with (tmp_path / "clip-count.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["count"]) for row in rows] == [entry["count"] for entry in entries]
    assert list(rows[0]) == ["frame", "time", "count"]
    assert {entry["low"] for entry in entries} == {None}  # the interval is of whole photos
    assert cv2.imread(str(tmp_path / "clip-count.png")).std() > 10
    assert "3 frames" in libra("count", clip, "--model", model, "--every", 5).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process alone is known on Linux")
def test_a_hundred_megapixels_are_counted_in_three_gigabytes():
    """From the file to the number, in a process of its own, with VGG16 on a whole tile."""
    assert np.prod(count_benchmark.SIDES) > 100e6
    figures = count_benchmark.run(BenchOptions())
    assert 0.5 < figures["count_100mp_peak_gb"] < 3.0


def test_region_and_size(folder, model):
    whole, part, small = (
        json.loads(libra("count", folder / "1.jpg", "--model", model, "--json", *more).stdout)[0]["count"]
        for more in ((), ("--region", "32,0,64,96"), ("--max-side", "64"))
    )
    pixels = Counter.load(model).count(folder / "1.jpg", region=(32, 0, 64, 96))
    assert part == pytest.approx(pixels.count, abs=0.01)
    assert len({whole, part, small}) == 3
    beyond = libra("count", folder / "1.jpg", "--model", model, "--json", "--region", "0,0,129,96")
    assert beyond.exit_code == 1
    assert "0,0,129,96" in json.loads(beyond.stdout)[0]["error"]


@pytest.mark.parametrize("text", ["1,2,3", "a,b,c,d", "1,2,3,4,5", "1.5,2,3,4", "0,0,0,4", "-1,0,3,4"])
def test_a_region_is_four_whole_numbers(text):
    with pytest.raises(LibraError, match=text):
        parse_region(text)


def test_files_folders_and_patterns(folder, clip, tmp_path):
    photos = [folder / f"{number}.jpg" for number in range(6)]
    assert find_files([str(folder)]) == photos
    assert find_files([str(folder / "[01].jpg")]) == photos[:2]
    assert find_files([str(folder / "1.jpg"), str(folder)]) == [photos[1], photos[0], *photos[2:]]
    assert find_files([str(clip.parent / "*")]) == [clip]
    assert find_files([str(folder.parent / f"[{folder.name[0]}]{folder.name[1:]}")]) == photos  # a pattern of folders
    assert [path.name for path in find_files([str(tmp_path / "none-*.jpg")])] == ["none-*.jpg"]
    odd = tmp_path / "photo[1].JPG"
    odd.write_bytes(b"")
    assert find_files([str(odd)]) == find_files([str(tmp_path)]) == [odd]


def test_an_empty_folder_is_an_error(tmp_path, model):
    done = libra("count", tmp_path, "--model", model, "--json")
    assert done.exit_code == 1
    assert "folder" in json.loads(done.stdout)[0]["error"]


def test_what_cannot_be_opened_does_not_stop_the_others(folder, model, tmp_path, monkeypatch):
    closed = tmp_path / "closed"
    closed.mkdir()

    def refusing(listing):
        def lists(path="."):
            if str(path) == str(closed):
                raise PermissionError(13, "Permission denied", str(path))
            return listing(path)

        return lists

    monkeypatch.setattr(Path, "iterdir", refusing(Path.iterdir))
    monkeypatch.setattr(os, "scandir", refusing(os.scandir))
    done = libra("count", folder / "1.jpg", closed, "x" * 300 + ".jpg", "--model", model, "--json")
    assert done.exit_code == 1
    first, second, third = json.loads(done.stdout)
    assert first["count"] >= 0
    assert second["error"] == "This folder cannot be read (Permission denied)."
    assert "too long" in third["error"]


def test_what_was_counted_before_ctrl_c_is_printed(folder, model, monkeypatch):
    count = Counter.count
    calls = []

    def stopped_at_the_second(self, *arguments, **settings):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return count(self, *arguments, **settings)

    monkeypatch.setattr(Counter, "count", stopped_at_the_second)
    done = libra("count", folder, "--model", model, "--json")
    assert done.exit_code == 130
    assert [entry["file"] for entry in json.loads(done.stdout)] == [str(folder / "0.jpg")]
    assert done.stderr == "libra: stopped after 1 of 6 files.\n"


def test_mistakes_before_counting_are_one_sentence(folder, model, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "MODELS", tmp_path)
    for arguments, named in (
        ((), "photo"),
        ((folder / "1.jpg",), "libra release"),
        ((folder / "1.jpg", "--model", "absent.safetensors"), "absent.safetensors"),
        ((folder / "1.jpg", "--model", ""), "The model is named ''; give a file"),
        ((folder / "1.jpg", "--model", model, "--region", "all"), "all"),
        ((folder / "1.jpg", "--model", model, "--overlay", folder / "1.jpg"), "--overlay"),
    ):
        done = libra("count", *arguments)
        assert isinstance(done.exception, LibraError)
        assert named in str(done.exception)


# ------------------------------------------------------------------------------------------------------------- release


@pytest.fixture(scope="module")
def run(folder, backbone, tmp_path_factory):
    """A run of one short epoch on one of the folder's photos, judged on the five others, with its weights file."""
    root = tmp_path_factory.mktemp("run")
    save_file({key: value.contiguous() for key, value in backbone.state_dict().items()}, root / "weights.safetensors")
    build_features(open_dataset("folder", folder), "all", backbone, root / "bank", workers=0)
    learning = {"learning_starts": 1, "update_every": 4, "batch_size": 1}  # of a few patches
    changes = {"policy_kwargs": {"network": {"hidden": [16]}}, **learning}
    splits = {"train_split": "all:1/6", "validation_split": "all:-1/6"}
    config = plan(str(root / "bank"), changes=changes, epochs=1, device="cpu", **splits)
    directory = RunDirectory(root / "run")
    directory.begin(config, ["libra", "train"])
    train(directory, config, Console(quiet=True))
    return directory.path


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


def test_a_photo_unlike_those_of_the_training_has_no_interval(backbone, model, folder, clip, tmp_path, monkeypatch):
    known = Counter.load(model)
    total = known.count(folder / "0.jpg").count
    notes = []
    monkeypatch.setattr(
        counting, "overlay_figure", lambda *given: notes.append(given[-1]) or overlay.overlay_figure(*given)
    )

    def counted(photo, *options, **kind):
        known.weigher.about.update(Kind(**kind).to_dict())
        known.save(tmp_path / "known.safetensors")
        done = libra("count", photo, "--model", tmp_path / "known.safetensors", "--json", *options)
        return json.loads(done.stdout)[0]

    like = {"longest_side": 128, "shortest_side": 128, "fewest": round(total), "most": round(total)}
    plain = counted(folder / "0.jpg", "--overlay", tmp_path, **like)
    assert "hint" not in plain
    assert plain["low"] < plain["high"]
    empty = counted(folder / "0.jpg", "--overlay", tmp_path, **(like | {"fewest": round(3 * total), "most": 10**6}))
    assert f"fewer than {round(3 * total):,} people" in empty["hint"]
    assert empty["low"] is empty["high"] is None
    assert empty["count"] == pytest.approx(plain["count"], abs=0.1)
    assert [note[:21] for note in notes] == ["", "no interval: no photo"]
    part = counted(folder / "0.jpg", "--region", "0,0,64,64", "--overlay", tmp_path, longest_side=20)
    assert part["low"] is None
    assert notes.pop().startswith("its longer side has 64 pixels")
    known.weigher.about.update(Kind(**like | {"fewest": round(3 * total), "most": 10**6}).to_dict())
    known.save(tmp_path / "known.safetensors")
    shown = libra("count", folder / "0.jpg", "--model", tmp_path / "known.safetensors")
    assert "–" in shown.stdout
    assert "80% interval from" not in shown.stdout
    small = counted(folder / "0.jpg", **(like | {"longest_side": 900, "shortest_side": 400}))
    assert "fewer than 400" in small["hint"]
    for of_a_part in (["--region", "0,0,32,32"], []):
        assert "hint" not in counted(folder / "0.jpg" if of_a_part else clip, *of_a_part)


def test_a_model_that_does_not_know_its_photos_gives_no_hint(model, tmp_path):
    assert Counter.load(model).kind.longest_side is None
    cv2.imwrite(str(tmp_path / "huge.png"), picture(0, 64, 1024))
    assert "hint" not in libra("count", tmp_path / "huge.png", "--model", model, "--json").stdout


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


def test_a_name_in_brackets_is_printed_as_it_is(folder, model, tmp_path):
    for name in ("we[ir]d", "b[_]x[/y]"):
        cv2.imwrite(str(tmp_path / "photo.png"), picture(0))
        place = tmp_path / f"{name}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photo.png").rename(place)
        text = "".join(libra("count", place, "--model", model).output.split())
        assert f"{name}.png" in text.replace("│", "")


def test_what_a_folder_holds_is_counted_or_told_of(folder, model, tmp_path):
    cv2.imwrite(str(tmp_path / "a$x_1$.jpg"), picture(0))
    shutil.copy(folder / "1.jpg", tmp_path / "b.jfif")
    (tmp_path / "c.HEIC").write_bytes(b"ftypheic")
    (tmp_path / "d.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (tmp_path / "notes.txt").write_text("not a photo")
    counted = libra("count", tmp_path, "--model", model, "--json", "--overlay", tmp_path)
    assert counted.exit_code == 1
    entries = {entry["file"].rpartition("/")[2]: entry for entry in json.loads(counted.stdout)}
    assert set(entries) == {"a$x_1$.jpg", "b.jfif", "c.HEIC", "d.jpg"}
    assert [name for name, entry in entries.items() if "error" in entry] == ["c.HEIC", "d.jpg"]
    assert (tmp_path / "b-count.png").is_file()
    # The pictures beside the photos are not photos.
    assert {path.name for path in find_files([str(tmp_path)])} == set(entries)


def test_a_patch_is_told_in_pixels_of_the_photo_before_it_was_shrunk(folder, model, tmp_path, monkeypatch):
    from experiments import counting

    scales = []
    draw = counting.overlay_figure
    monkeypatch.setattr(counting, "overlay_figure", lambda *given: scales.append(given[3]) or draw(*given))
    for more in ((), ("--max-side", "64")):
        assert libra("count", folder / "0.jpg", "--model", model, "--overlay", tmp_path, *more).exit_code == 0
    assert scales[1] == pytest.approx(scales[0] / 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("count", "photo.jpg", "--card"), "counts nothing"),
        (("count", "--card", "--json"), "--json counts nothing with --card"),
        (
            ("reproduce", "game", "--root", "nowhere", "--weights", "imagenet", "--out", "tables"),
            "no directory 'nowhere'",
        ),
        (("evaluate", "dense", "--dataset", "folder", "--root", ".", "--device", "cuda9"), "no device 'cuda9'"),
        (("bench", "--only", "counts", "--out", "."), "is a directory"),
        (("release", "run", "--out", "nowhere/model.safetensors"), "no directory 'nowhere'"),
        (("release", "run", "--out", "model.safetensors"), "'run' is no directory of a run"),
        (("release", "run", "--out", "model.bin"), "ends with .safetensors, which 'model.bin' does not"),
        (("features", "--dataset", "folder", "--root", "nowhere", "--out", "bank"), "nowhere"),
        (("features", "--mirror", "verify", "bank"), "--mirror is not for `libra features verify`"),
        (("reproduce", "speed", "--seeds", "2", "--weights", "random", "--out", "tables"), "--seeds is not for"),
        (("pretrain", "--dataset", "folder", "--cache", "none", "--cache-dir", "x", "--out", "run"), "--cache-dir is"),
        (("pretrain", "--dataset", "folder", "--cache", "none", "--cache-gb", "2", "--out", "run"), "--cache-gb"),
        (("count", "photo.jpg", "--every", "5"), "--every is for videos"),
    ],
)
def test_mistakes_are_told_before_anything_is_done(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = libra(*arguments)
    assert isinstance(result.exception, LibraError)
    assert message in str(result.exception)
    assert list(tmp_path.iterdir()) == []
