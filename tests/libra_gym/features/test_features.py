"""The feature cache: what is in it, how it is opened, and the command that makes it."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from features_helpers import SIZES, contents, make, tiny_backbone, write_photo
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from experiments.commands import features as command
from experiments.commands.features import app
from experiments.runs.scenes import bank_scene
from libra_gym.backbones import preprocess
from libra_gym.bank import FeatureBank
from libra_gym.banks import load_bank
from libra_gym.counts import KERNELS, patch_counts
from libra_gym.datasets import open_dataset
from libra_gym.datasets.views import paper_crops
from libra_gym.errors import LibraError
from libra_gym.features import Manifest, ShardRows, build, open_features
from libra_gym.features.manifest import Recipe
from libra_gym.tiling import whole_features

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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mirror": True, "split": "validation"}, "'validation' is no training split"),
        ({"crops": "paper", "split": "train:1/2"}, "'train:1/2' is no training split"),
        ({"crops": "paper", "mirror": True}, "mirrored as they are"),
        ({"scale": 1000.0}, "at most 16"),
    ],
)
def test_what_would_do_nothing_is_refused(photos: Path, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(LibraError, match=said):
        make(photos, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform == "darwin", reason="its disks take no such names")
def test_a_name_need_not_be_text(tmp_path: Path) -> None:
    write_photo(tmp_path / "photos" / "train", "plain", (64, 64), 3, 0)
    for suffix in (".png", ".csv"):
        photo = (tmp_path / "photos" / "train" / "plain").with_suffix(suffix)
        photo.with_name(f"caf\udce9{suffix}").write_bytes(photo.read_bytes())
    manifest = make(tmp_path / "photos", tmp_path / "out", mirror=True)
    assert "train/caf\udce9.png" in manifest.recipe.photos
    assert Manifest.load(tmp_path / "out") == manifest
    assert make(tmp_path / "photos", tmp_path / "out", mirror=True) == manifest
    bank = open_features(tmp_path / "out")
    bank.save(tmp_path / "bank.safetensors")
    assert [image.name for image in FeatureBank.load(tmp_path / "bank.safetensors").images] == [
        image.name for image in bank.images
    ]


def test_a_photo_too_large_for_its_backbone_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "UNTILED_PIXELS", 64**2)
    monkeypatch.setattr(build, "reach", lambda backbone: None)
    for name, side in (("small", 60), ("large", 90)):
        write_photo(tmp_path / "photos" / "train", name, (side, side), 3, side)
    with pytest.raises(LibraError, match=r"large\.png, looked at in 90 × 90 pixels.*--scale.*--skip-bad"):
        make(tmp_path / "photos", tmp_path / "out", split="all")
    manifest = make(tmp_path / "photos", tmp_path / "out", split="all", skip_bad=True)
    assert [photo.name for photo in manifest.skipped] == ["train/large.png"]


def test_photos_that_their_data_set_limits_in_size_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "natural_scale", lambda dataset, size: min(1.0, 64 / min(size)))
    for name, side in (("small", 60), ("large", 128)):
        write_photo(tmp_path / "photos" / "train", name, (side, side), 3, side)
    make(tmp_path / "photos", tmp_path / "out", split="all", scale=2.0)
    bank = open_features(tmp_path / "out")
    assert bank.meta["shrunk"] == {"train/large.png": 0.5}
    scales = {image.name: bank_scene(bank, i, lambda _: None).scale for i, image in enumerate(bank.images)}
    assert scales == {"train/small.png": 2.0, "train/large.png": 1.0}


def test_a_name_with_a_hash_is_a_photo_of_its_own(tmp_path: Path) -> None:
    for number in range(4):
        write_photo(tmp_path / "photos" / "train", f"street #{number}", (64, 64), 3, number)
    write_photo(tmp_path / "photos" / "validation", "other", (64, 64), 3, 9)
    make(tmp_path / "photos", tmp_path / "out", mirror=True)
    bank = open_features(tmp_path / "out")
    names = [photo.name for photo in open_dataset("folder", tmp_path / "photos").photos("train:1/2")]
    assert sorted({image.photo for image in bank.split("train:1/2").images}) == sorted(names)
    assert len(bank.split("train:1/2").images) == 2 * len(names)


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
    known = {image.name: (*image.size, image.people) for image in whole.images}
    assert whole.meta["photos"] == half.meta["photos"] == known
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


def test_a_split_of_shards_is_still_mapped(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "out")
    bank = open_features(tmp_path / "out")
    assert isinstance(bank.features, ShardRows)
    part = bank.select(range(1, 5))
    assert isinstance(part.features, ShardRows)
    assert len(part.features.parts) > 1
    begin = bank.patches_of(1).start
    assert part.features.parts[0].data_ptr() == bank.features.parts[0][begin:].data_ptr()
    assert torch.equal(part.features[:], bank.features[:][begin : bank.patches_of(4).stop])


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


# -------------------------------------------------------------------------------------------------------------- command


@pytest.mark.parametrize(("more", "again"), [([], "the same command goes"), (["--rebuild"], "without --rebuild goes")])
def test_stopped_by_ctrl_c_it_says_how_to_go_on(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], again: str
) -> None:
    def stopped(*_: object, progress: Callable[[int, int], None], **__: object) -> None:
        progress(16, 40)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "build_features", stopped)
    source = ["--dataset", "folder", "--root", str(photos), "--backbone", "mobilenet_v3_large", "--weights", "random"]
    result = CliRunner().invoke(app, [*source, "--out", str(tmp_path / "out"), *more])
    assert result.exit_code == 130
    assert "16 of 40 photos" in result.stdout
    assert again in result.stdout


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
        (["--dataset", "synthetic", "--out", "x", "--device", "abacus"], "abacus"),
        (["--dataset", "synthetic", "--out", "x", "--weights", "no-such-file"], "no-such-file"),
    ],
)
def test_the_command_says_what_it_needs(arguments: list[str], message: str) -> None:
    failure = CliRunner().invoke(app, arguments).exception
    assert isinstance(failure, LibraError)
    assert message in str(failure)


def test_a_large_photo_goes_through_in_tiles_with_the_same_features(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(photos, tmp_path / "whole")
    tiled_look = Mock(wraps=whole_features)
    monkeypatch.setattr(build, "LARGE_PIXELS", 64 * 64)
    monkeypatch.setattr(build, "whole_features", tiled_look)
    make(photos, tmp_path / "tiled")
    assert tiled_look.called
    whole, tiled = (open_features(tmp_path / name) for name in ("whole", "tiled"))
    torch.testing.assert_close(tiled.features[:], whole.features[:], rtol=1e-2, atol=1e-3)
