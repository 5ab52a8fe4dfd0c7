"""The feature cache after crashes, on full disks, and when anything under it has changed."""

import errno
import fcntl
import json
import multiprocessing
import os
import resource
import select
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from features_helpers import SIZES, contents, make, tiny_backbone, write_photo
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_gym.counts import KERNELS
from libra_gym.errors import LibraError
from libra_gym.features import Manifest, build, open_features, storage, verify_features
from libra_gym.features.storage import write_whole

FORK = multiprocessing.get_context("fork")


# -------------------------------------------------------------------------------------------------------------- crashes


def killed_at(moment: int, photos: Path, out: Path) -> int:
    """Build in another process that is killed by the system at this event of the program; its exit code."""

    def run() -> None:
        counter = iter(range(moment))

        def watch(frame: Any, event: str, argument: Any) -> None:
            if frame.f_code.co_filename in (build.__file__, storage.__file__) and next(counter, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(watch)
        make(photos, out)

    process = FORK.Process(target=run)
    process.start()
    process.join()
    return process.exitcode or 0


def count_events(photos: Path, out: Path) -> int:
    events = 0

    def watch(frame: Any, event: str, argument: Any) -> None:
        nonlocal events
        events += frame.f_code.co_filename in (build.__file__, storage.__file__)

    sys.setprofile(watch)
    try:
        make(photos, out)
    finally:
        sys.setprofile(None)
    return events


def test_killed_at_any_moment_and_started_again_it_gives_the_same_bytes(photos: Path, tmp_path: Path) -> None:
    events = count_events(photos, tmp_path / "undisturbed")
    expected = contents(tmp_path / "undisturbed")
    finished = set()
    for moment in range(1, events, events // 12):
        out = tmp_path / f"killed-{moment}"
        assert killed_at(moment, photos, out) == -signal.SIGKILL
        finished.add(len(Manifest.load(out).shards) if (out / "manifest.json").exists() else 0)
        make(photos, out)
        assert contents(out) == expected
    assert len(finished) >= 4, "the kills should come at different stages"


def test_a_chain_of_kills_does_no_harm(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "undisturbed")
    for moment in (700, 500, 600, 400, 800):
        killed_at(moment, photos, tmp_path / "out")
    make(photos, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_a_killed_builder_leaves_neither_a_lock_nor_readers(photos: Path, tmp_path: Path) -> None:
    for number in range(len(SIZES)):
        write_photo(photos / "train", f"t{number}", (256, 320), 5, number)  # more than a pipe holds
    alive, inherited = os.pipe()  # reads as ended when the last process that inherited it is gone

    def die(done: int, total: int) -> None:
        if done > 2:
            os.kill(os.getpid(), signal.SIGKILL)

    process = FORK.Process(target=lambda: make(photos, tmp_path / "out", workers=2, progress=die))
    process.start()
    os.close(inherited)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    make(photos, tmp_path / "out")
    make(photos, tmp_path / "undisturbed")
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")
    assert select.select([alive], [], [], 60)[0], "a reader outlived its builder"
    os.close(alive)


def test_a_second_builder_is_told_who_holds_the_directory(photos: Path, tmp_path: Path) -> None:
    begun, end = FORK.Event(), FORK.Event()

    def hold() -> None:
        with storage.locked(tmp_path / "out"):
            begun.set()
            end.wait(60)

    process = FORK.Process(target=hold)
    process.start()
    try:
        assert begun.wait(60)
        with pytest.raises(LibraError, match=f"process {process.pid} on "):
            make(photos, tmp_path / "out")
    finally:
        end.set()
        process.join()
    make(photos, tmp_path / "out")


def test_two_processes_may_write_the_same_file(tmp_path: Path) -> None:
    """As two pre-trainings do that share the maps of their frozen layers: each time it is whole, whoever came last."""
    path, large = tmp_path / "map", 1 << 16

    def write(letter: bytes) -> None:
        for _ in range(100):
            storage.write_whole(path, letter * large)

    processes = [FORK.Process(target=write, args=(letter,)) for letter in (b"a", b"b")]
    for process in processes:
        process.start()
    seen = set()
    while any(process.is_alive() for process in processes):
        if path.exists():
            seen.add(path.read_bytes())
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert seen <= {b"a" * large, b"b" * large}
    assert os.listdir(tmp_path) == ["map"]


@pytest.fixture
def file_size_limit() -> Iterator[Callable[[int], None]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_without_room_is_said_and_finished_shards_are_kept(
    photos: Path, tmp_path: Path, file_size_limit: Callable[[int], None]
) -> None:
    make(photos, tmp_path / "undisturbed")
    sizes = [(tmp_path / "undisturbed" / f"shard-0000{number}.safetensors").stat().st_size for number in range(3)]
    assert max(sizes[:2]) < sizes[2] or max(sizes) < 10_000
    write_photo(photos / "train", "t2", (640, 640), 5, 2)  # the second shard is now by far the largest file

    file_size_limit(3000)
    with pytest.raises(LibraError, match=r"shard-00001.* cannot be written \(File too large\)"):
        make(photos, tmp_path / "out")
    assert len(Manifest.load(tmp_path / "out").shards) == 1
    assert not list((tmp_path / "out").glob("*.tmp"))


def test_a_directory_that_cannot_be_written_is_named(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LibraError, match=r"there is no directory .*nowhere"):
        write_whole(tmp_path / "nowhere" / "file", b"")
    with pytest.raises(LibraError, match="it is a directory"):
        write_whole(tmp_path, b"")
    with pytest.raises(LibraError, match="file/out cannot be written to"):
        make(photos, tmp_path / "file" / "out")


def test_a_disk_that_cannot_flush_directories_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = os.fsync

    def files_alone(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", files_alone)
    write_whole(tmp_path / "file", b"all")
    assert (tmp_path / "file").read_bytes() == b"all"


def test_a_disk_without_locks_is_written_to_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without(error: int) -> None:
        def lock(*_: object) -> None:
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr(fcntl, "lockf", lock)

    without(errno.ENOLCK)
    with storage.locked(tmp_path / "out"):
        assert "this disk has no locks (No locks available)" in caplog.text
    without(errno.EIO)
    with pytest.raises(LibraError, match="another disk"), storage.locked(tmp_path / "out"):
        pass


def test_a_name_may_be_as_long_as_the_disk_allows(tmp_path: Path) -> None:
    for letter in "xé":
        name = letter * (250 // len(letter.encode()))
        write_whole(tmp_path / name, b"all")
        assert (tmp_path / name).read_bytes() == b"all"


def test_an_unreadable_photo_stops_the_run_or_is_recorded(photos: Path, tmp_path: Path) -> None:
    bad = photos / "train" / "t3.png"
    bad.write_bytes(bad.read_bytes()[:50])
    with pytest.raises(LibraError, match=r"t3.png.*--skip-bad"):
        make(photos, tmp_path / "out")
    assert len(Manifest.load(tmp_path / "out").shards) == 1
    with pytest.raises(LibraError, match="not finished"):
        open_features(tmp_path / "out")

    manifest = make(photos, tmp_path / "out", skip_bad=True)
    assert [photo.name for photo in manifest.skipped] == ["train/t3.png"]
    bank = open_features(tmp_path / "out")
    assert len(bank.images) == len(SIZES) + 1
    assert bank.meta["skipped"] == ["train/t3.png"]

    write_photo(photos / "train", "t3", (64, 64), 4, 4)
    with pytest.raises(LibraError, match=r"t3.png, which was left out .* has changed"):
        make(photos, tmp_path / "out", skip_bad=True)


# -------------------------------------------------------------------------------------------------------------- changes


def test_a_finished_cache_is_only_checked(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/shard*")}
    backbone = tiny_backbone()
    backbone.register_forward_pre_hook(lambda *_: pytest.fail("the backbone was run again"))
    make(photos, tmp_path / "out", backbone)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/shard*")}


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"backbone": tiny_backbone(seed=1)}, "weights"),
        ({"kernel": KERNELS["points"]}, "kernel"),
        ({"dtype": torch.float32}, "dtype float16 and this run has float32"),
        ({"crops": "paper"}, "crops none and this run has paper"),
        ({"mirror": True}, "mirror False and this run has True"),
        ({"split": "train"}, "split train\\+validation and this run has train"),
    ],
)
def test_another_recipe_is_refused_until_a_rebuild(
    photos: Path, tmp_path: Path, options: dict[str, Any], difference: str
) -> None:
    make(photos, tmp_path / "out")
    with pytest.raises(LibraError, match=f"{difference}.*--rebuild"):
        make(photos, tmp_path / "out", **options)
    make(photos, tmp_path / "out", **options, rebuild=True)
    make(photos, tmp_path / "fresh", **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("change", ["t1.png", "t1.csv", "a new photo"])
def test_a_changed_photo_or_dot_is_noticed(photos: Path, tmp_path: Path, change: str) -> None:
    make(photos, tmp_path / "out")
    if change == "t1.png":
        cv2.imwrite(str(photos / "train" / change), np.zeros((70, 65, 3), np.uint8))
    elif change == "t1.csv":
        (photos / "train" / change).write_text("3,4\n")
    else:
        write_photo(photos / "train", "t9", (32, 32), 1, 9)
        change = "t9.png"
    with pytest.raises(LibraError, match=f"{change}.*--rebuild"):
        make(photos, tmp_path / "out")


def test_another_schema_is_refused(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "out")
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema": 0}))
    with pytest.raises(LibraError, match=r"schema 0 .* schema 1; .*--rebuild"):
        open_features(tmp_path / "out")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    write_photo(root / "photos", "only", (64, 64), 5, 0)
    make(root / "photos", root / "out", split="train")
    return root / "out"


@settings(max_examples=60, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), name=st.sampled_from(["shard", "manifest"]))
def test_any_flipped_bit_is_found(finished: Path, place: float, bit: int, name: str) -> None:
    path = next(finished.glob(f"{name}*"))
    sound = path.read_bytes()
    spoilt = bytearray(sound)
    spoilt[int(place * len(spoilt))] ^= 1 << bit
    try:
        path.write_bytes(spoilt)
        try:
            found = verify_features(finished)
        except LibraError as error:
            found = [str(error)]
        # A flipped bit between the manifest's words can leave its meaning as it was: white space is not content.
        assert found or (name == "manifest" and json.loads(spoilt) == json.loads(sound))
    finally:
        path.write_bytes(sound)
    assert verify_features(finished) == []


def test_a_truncated_or_missing_shard_is_refused_at_once(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "out")
    shard = tmp_path / "out" / "shard-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    for spoil in (lambda: None, shard.unlink):
        spoil()
        with pytest.raises(LibraError, match=r"shard-00002.*--rebuild"):
            open_features(tmp_path / "out")
        with pytest.raises(LibraError, match=r"shard-00002.*--rebuild"):
            make(photos, tmp_path / "out")


def test_a_directory_that_is_no_cache_is_named(tmp_path: Path) -> None:
    with pytest.raises(LibraError, match="no feature cache"):
        open_features(tmp_path)
