"""The feature cache: exact, resumable after any crash, and suspicious of everything that has changed."""

import json
import multiprocessing
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from experiments.commands.features import app
from libra_gym.backbones import Backbone, preprocess
from libra_gym.bank import FeatureBank, load_bank
from libra_gym.counts import KERNELS, patch_counts
from libra_gym.datasets import open_dataset
from libra_gym.datasets.views import paper_crops
from libra_gym.errors import LibraError
from libra_gym.features import Manifest, ShardRows, build, build_features, open_features, storage, verify_features
from libra_gym.features.manifest import Recipe

FORK = multiprocessing.get_context("fork")
SIZES = [(64, 96), (70, 65), (64, 96), (31, 200), (33, 33), (64, 96), (70, 65)]


def tiny_backbone(seed: int = 0, scale: float = 1.0) -> Backbone:
    """One convolution with stride 32: as good as VGG16 to a cache, and a thousand times faster."""
    conv = nn.Conv2d(3, 5, 32, 32)
    with torch.no_grad():
        for parameter in conv.parameters():
            numbers = torch.rand(parameter.shape, generator=torch.Generator().manual_seed(seed))
            parameter.copy_(scale * numbers / 32)
    return Backbone("tiny", {"features": nn.Sequential(conv)})


def write_photo(folder: Path, name: str, size: tuple[int, int], people: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(folder / f"{name}.png"), rng.integers(0, 256, (*size, 3), np.uint8))
    dots = rng.uniform(-1, [size[1], size[0]], (people, 2))
    (folder / f"{name}.csv").write_text("".join(f"{x:.2f},{y:.2f}\n" for x, y in dots))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads cost more than they bring here, and do not survive a fork."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PHOTOS_PER_SHARD", 2)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for number, size in enumerate(SIZES):
        write_photo(root / "train", f"t{number}", size, people=7 * number, seed=number)
    for number in range(2):
        write_photo(root / "validation", f"v{number}", (50, 100), people=9, seed=100 + number)
    return root


def make(photos: Path, out: Path, backbone: Backbone | None = None, **options: Any) -> Manifest:
    options = {"workers": 0, **options}
    split = options.pop("split", "train+validation")
    return build_features(open_dataset("folder", photos), split, backbone or tiny_backbone(), out, **options)


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name != storage.LOCK}


# ------------------------------------------------------------------------------------------------------------- contents


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 1e-3), (torch.float32, 1e-6)])
def test_a_bank_holds_what_the_backbone_sees_and_where_the_people_are(
    photos: Path, tmp_path: Path, dtype: torch.dtype, tolerance: float
) -> None:
    make(photos, tmp_path / "out", dtype=dtype)
    bank = open_features(tmp_path / "out")
    assert bank.features.dtype == dtype
    dataset = open_dataset("folder", photos)
    expected = [(photo, split) for split in ("train", "validation") for photo in dataset.photos(split)]
    assert [(image.name, image.split) for image in bank.images] == [(photo.name, split) for photo, split in expected]
    for number, (photo, _) in enumerate(expected):
        image, patches = bank.images[number], bank.patches_of(number)
        pixels, size = photo.image(), photo.image().shape[:2]
        features = tiny_backbone()(preprocess(pixels)[None])[0]
        torch.testing.assert_close(
            bank.features[patches].float(), features.flatten(1).T, rtol=tolerance, atol=tolerance, check_dtype=False
        )
        counts = patch_counts(photo.points(), (size[0], size[1]))
        assert (image.rows, image.cols) == counts.shape == features.shape[1:]
        np.testing.assert_array_equal(bank.counts[patches].numpy(), counts.ravel())
        assert image.size == size
        assert image.people == pytest.approx(counts.sum(), abs=1e-3)


@pytest.mark.usefixtures("bf16")
def test_a_backbone_that_computes_in_bf16_sees_nearly_the_same(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "single")
    manifest = make(photos, tmp_path / "half", precision=torch.bfloat16)
    assert manifest.recipe.precision == "bfloat16"
    single, half = (open_features(tmp_path / name).features[:].float() for name in ("single", "half"))
    assert half.dtype == single.dtype
    assert not torch.equal(half, single)
    assert (half - single).norm() < 0.02 * single.norm()
    with pytest.raises(LibraError, match=r"precision float32 and this run has bfloat16.*--precision bf16"):
        make(photos, tmp_path / "single", precision=torch.bfloat16)


def test_a_cache_of_an_earlier_version_was_made_in_single_precision(photos: Path, tmp_path: Path) -> None:
    manifest = make(photos, tmp_path / "out")
    recipe = asdict(manifest.recipe)
    del recipe["precision"]
    assert Recipe(**recipe | {"kernel": manifest.recipe.kernel}) == manifest.recipe


def test_the_papers_crops_are_taken_of_training_photos_only(photos: Path, tmp_path: Path) -> None:
    manifest = make(photos, tmp_path / "out", crops="paper")
    bank = open_features(tmp_path / "out")
    assert [image.split for image in bank.images] == ["train"] * 18 * len(SIZES) + ["validation"] * 2
    records = [photo for shard in manifest.shards for photo in shard.photos]
    for record in records:
        number = 18 if record.split == "train" else 1
        assert len(record.views) == number
        assert len({view.size for view in record.views}) == 1
    corners = paper_crops(records[0].size)[:4]
    assert list(records[0].views[:4]) == corners
    assert records[0].views[4:9] != records[2].views[4:9], "photos of one size should have random crops of their own"


def test_a_mirrored_photo_has_the_same_people(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "out", mirror=True)
    bank = open_features(tmp_path / "out")
    assert [image.name for image in bank.images[:4]] == [
        "train/t0.png",
        "train/t0.png#1",
        "train/t1.png",
        "train/t1.png#1",
    ]
    for number in range(0, 2 * len(SIZES), 2):
        plain, mirrored = bank.images[number], bank.images[number + 1]
        assert plain.people == mirrored.people
        assert bank.image_totals(bank.counts)[number] == pytest.approx(
            bank.image_totals(bank.counts)[number + 1].item()
        )
    assert len(bank.images) == 2 * len(SIZES) + 2


def test_a_scaled_photo_has_the_same_people_on_fewer_patches(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "whole")
    make(photos, tmp_path / "half", scale=0.5, mirror=True)
    whole, half = open_features(tmp_path / "whole"), open_features(tmp_path / "half")
    assert half.meta["scale"] == 0.5
    longest = max(max(image.size) for image in whole.images)
    assert whole.meta["longest_side"] == half.meta["longest_side"] == longest
    twins = [image for image in half.images if not image.name.endswith("#1")]
    assert len(twins) == len(whole.images) < len(half.images)
    for plain, small in zip(whole.images, twins):
        assert (small.name, small.people) == (plain.name, plain.people)
        assert small.size == tuple(round(side * 0.5) for side in plain.size)
    assert len(half) < len(whole)
    assert float(half.counts.max()) > float(whole.counts.max())
    with pytest.raises(LibraError, match=r"scale 0\.5 and this run has 1\.0"):
        make(photos, tmp_path / "half", mirror=True)


@pytest.mark.parametrize(("wrong", "said"), [({"scale": 0.0}, "greater than 0"), ({"crops": "paper"}, "leave one")])
def test_an_impossible_scale_is_refused(photos: Path, tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(LibraError, match=said):
        make(photos, tmp_path / "out", **{"scale": 0.5, **wrong})


@pytest.mark.parametrize("kernel", KERNELS)
def test_another_kernel_needs_no_backbone(photos: Path, tmp_path: Path, kernel: str) -> None:
    make(photos, tmp_path / "one", crops="paper")
    make(photos, tmp_path / "two", crops="paper", kernel=KERNELS[kernel])
    derived, made = open_features(tmp_path / "one", KERNELS[kernel]), open_features(tmp_path / "two")
    assert torch.equal(derived.counts, made.counts)
    assert derived.quantizer == made.quantizer


def test_intervals_are_fitted_to_the_training_photos(photos: Path, tmp_path: Path) -> None:
    write_photo(photos / "validation", "crowd", (40, 40), people=900, seed=7)
    make(photos, tmp_path / "both")
    make(photos, tmp_path / "train", split="train")
    assert open_features(tmp_path / "both").quantizer == open_features(tmp_path / "train").quantizer


def test_processes_that_read_change_nothing(photos: Path, tmp_path: Path) -> None:
    backbone = tiny_backbone()
    state = torch.get_rng_state()
    make(photos, tmp_path / "alone", backbone)
    make(photos, tmp_path / "helped", backbone, workers=2)
    assert contents(tmp_path / "alone") == contents(tmp_path / "helped")
    assert torch.equal(state, torch.get_rng_state())


def test_features_that_overflow_half_precision_are_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(LibraError, match="--dtype fp32"):
        make(photos, tmp_path / "out", tiny_backbone(scale=1e6))
    make(photos, tmp_path / "out", tiny_backbone(scale=1e6), dtype=torch.float32)


# -------------------------------------------------------------------------------------------------------------- opening


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_opening_maps_the_shards_and_copies_no_run_of_rows(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "out")
    bank = open_features(tmp_path / "out")
    assert "shard-00001.safetensors" in Path("/proc/self/maps").read_text()
    assert isinstance(bank.features, ShardRows)
    second = bank.features.parts[1]
    begin = int(bank.features.ends[0])
    assert bank.features[begin : begin + len(second)].data_ptr() == second.data_ptr()


def test_a_bank_is_found_by_its_directory(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "out")
    assert isinstance(load_bank(str(tmp_path / "out")), FeatureBank)
    assert len(load_bank(str(tmp_path / "out"), "validation").images) == 2


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(sum),
    data=st.data(),
)
def test_rows_of_shards_are_indexed_like_one_tensor(sizes: list[int], data: st.DataObject) -> None:
    whole = torch.arange(2.0 * sum(sizes)).view(-1, 2)
    rows = ShardRows(list(whole.split(sizes)))
    n = len(whole)
    index = torch.tensor(data.draw(st.lists(st.integers(-n, n - 1))), dtype=torch.long)
    run = slice(data.draw(st.integers(-n, n)), data.draw(st.integers(-n, n)), data.draw(st.sampled_from([None, 1, 2])))
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    assert rows.shape == tuple(whole.shape)
    for one in (index, index.view(-1, 1), run, mask):
        assert torch.equal(rows[one], whole[one])
    assert torch.equal(rows.to("cpu"), whole)
    with pytest.raises(IndexError):
        rows[torch.tensor([n])]


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
    with pytest.raises(LibraError, match="file/out cannot be written to"):
        make(photos, tmp_path / "file" / "out")


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


# -------------------------------------------------------------------------------------------------------------- command


def test_the_command_builds_and_verifies(photos: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    arguments = ["--dataset", "folder", "--root", str(photos), "--backbone", "mobilenet_v3_large", "--workers", "0"]
    result = CliRunner().invoke(app, [*arguments, "--weights", "random", "--out", out], catch_exceptions=False)
    assert result.exit_code == 0
    assert "highest interval" in result.output
    assert CliRunner().invoke(app, ["verify", out]).exit_code == 0

    shard = tmp_path / "out" / "shard-00000.safetensors"
    spoilt = bytearray(shard.read_bytes())
    spoilt[-1] ^= 1
    shard.write_bytes(spoilt)
    failure = CliRunner().invoke(app, ["verify", out]).exception
    assert isinstance(failure, LibraError)
    assert "shard-00000" in str(failure)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--dataset and --out"),
        (["--dataset", "folder", "--out", "x", "--kernel", "square"], "square"),
        (["--dataset", "folder", "--out", "x", "--device", "abacus"], "abacus"),
        (["--dataset", "folder", "--out", "x", "--weights", "no-such-file"], "no-such-file"),
    ],
)
def test_the_command_says_what_it_needs(arguments: list[str], message: str) -> None:
    failure = CliRunner().invoke(app, arguments).exception
    assert isinstance(failure, LibraError)
    assert message in str(failure)
