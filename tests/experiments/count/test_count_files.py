"""What becomes of the files that `libra count` is given and of those that it writes."""

import io
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from rich.console import Console

from experiments import counting
from experiments.counting import Session, find_files
from libra_gym.counter import Counted
from libra_gym.errors import LibraError
from libra_gym.kind import Kind


def counter(failing=()):
    """Counts nobody; fails with these errors at the first photos."""
    errors = list(failing)

    def count(pixels, whole=True):
        if errors:
            raise errors.pop(0)
        return Counted(0.0, None, None, None, np.zeros((1, 1), np.float32), 0.0)

    return SimpleNamespace(
        count=count,
        kind=Kind(),
        uncertainty=None,
        look=lambda pixels: pixels,
        scale_of=lambda pixels: 1.0,
    )


@pytest.fixture
def quick(monkeypatch):
    """Pictures that are drawn at once."""
    figure = SimpleNamespace(savefig=lambda file, **_: file.write(b"picture"))
    monkeypatch.setattr(counting, "overlay_figure", lambda *_: figure)


def photo(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.zeros((32, 32, 3), np.uint8))
    return path


def run(session, *files):
    session.run(files, Console(file=io.StringIO()))
    return session.entries


def test_an_error_of_a_library_does_not_stop_the_others(tmp_path):
    failing = (RuntimeError("Failed to decode\nmore"), MemoryError(), cv2.error("too large"))
    entries = run(Session(counter(failing)), *(photo(tmp_path / f"{number}.png") for number in range(4)))
    assert [entry.get("error", "") for entry in entries] == [
        "This file cannot be counted (Failed to decode).",
        "This file cannot be counted (MemoryError).",
        "This file cannot be counted (too large).",
        "",
    ]


def test_no_picture_takes_the_place_of_a_file_to_count(tmp_path, quick):
    files = [photo(tmp_path / name) for name in ("a.png", "a-count.png", "b.png")]
    (tmp_path / "link.png").symlink_to(tmp_path / "elsewhere" / "b-count.png")
    kept = photo(tmp_path / "elsewhere" / "b-count.png").read_bytes()
    run(Session(counter(), overlay=tmp_path), *files, tmp_path / "link.png")
    assert files[1].read_bytes() != b"picture"
    assert (tmp_path / "a-count-2.png").read_bytes() == b"picture"
    run(Session(counter(), overlay=tmp_path / "elsewhere"), files[2], tmp_path / "link.png")
    assert (tmp_path / "elsewhere" / "b-count.png").read_bytes() == kept
    assert (tmp_path / "elsewhere" / "b-count-2.png").is_file()


def test_pictures_whose_names_differ_in_capitals_alone_are_told_apart(tmp_path, quick):
    files = [photo(tmp_path / folder / name) for folder, name in (("1", "IMG_1.png"), ("2", "img_1.png"))]
    run(Session(counter(), overlay=tmp_path / "out"), *files)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["IMG_1-count.png", "img_1-count-2.png"]


def test_the_picture_rounds_as_the_table_does(tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr(
        counting,
        "overlay_figure",
        lambda *given: titles.append(given[2]) or SimpleNamespace(savefig=lambda *_, **__: 0),
    )
    one = counter()
    one.count = lambda _, whole: Counted(13.4996, 1.0, 121.4999, 0.8, np.zeros((1, 1), np.float32), 0.0)
    (entry,) = run(Session(one, overlay=tmp_path), photo(tmp_path / "a.png"))
    assert (entry["count"], entry["high"]) == (13.5, 121.5)
    assert titles == ["14 people (80% interval 1 to 122)\na.png"]
    one.count = lambda _, whole: Counted(1.2, None, None, None, np.zeros((1, 1), np.float32), 0.0)
    run(Session(one, overlay=tmp_path), photo(tmp_path / "a.png"))
    assert titles[1] == "1 person\na.png"


def test_what_macos_keeps_beside_a_photo_is_no_photo(tmp_path):
    (tmp_path / "._a.png").write_bytes(b"\0\5\x16\7")
    photo(tmp_path / "a.png")
    assert find_files([str(tmp_path)]) == [tmp_path / "a.png"]


@pytest.mark.parametrize("nothing", ["", " "])
def test_a_name_that_is_empty_is_no_folder(nothing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photo(Path("a.png"))
    with pytest.raises(LibraError, match="which is nothing"):
        find_files([nothing])
    assert find_files(["."]) == [Path("a.png")]


def test_an_overlay_replaces_earlier_ones_and_no_file_of_the_user(tmp_path):
    """A photo may be called as an overlay would be; only pictures with the mark are passed over and replaced."""
    files = [photo(tmp_path / name) for name in ("my.png", "my-count.png")]
    contents = [file.read_bytes() for file in files]
    for _ in range(2):
        found = find_files([str(tmp_path)])
        assert [file.name for file in found] == ["my-count.png", "my.png"]
        run(Session(counter(), overlay=tmp_path), *found)
        assert [file.read_bytes() for file in files] == contents
        made = sorted(file.name for file in tmp_path.iterdir())
        assert made == ["my-count-2.png", "my-count-count.png", "my-count.png", "my.png"]


def test_a_videos_counts_overwrite_no_table_of_the_user(tmp_path):
    (tmp_path / "clip-count.csv").write_text("x,y")
    frames = [{"frame": 0, "time": 0.0, "count": 3.0}]
    for _ in range(2):
        Session(counter(), overlay=tmp_path)._save_course(tmp_path / "clip.mp4", frames)
    assert (tmp_path / "clip-count.csv").read_text() == "x,y"
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "clip-count-2.csv",
        "clip-count-2.png",
        "clip-count.csv",
    ]
