"""`libra count` as a user meets it."""

import csv
import json
import os
import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from count_helpers import libra, picture

from experiments import counting
from experiments.benchmarks import BenchOptions
from experiments.benchmarks import count as count_benchmark
from experiments.counting import find_files, parse_region
from libra_gym import models
from libra_gym.counter import Counter
from libra_gym.errors import LibraError


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

    scales = []
    draw = counting.overlay_figure
    monkeypatch.setattr(counting, "overlay_figure", lambda *given: scales.append(given[3]) or draw(*given))
    for more in ((), ("--max-side", "64")):
        assert libra("count", folder / "0.jpg", "--model", model, "--overlay", tmp_path, *more).exit_code == 0
    assert scales[1] == pytest.approx(scales[0] / 2)
