"""Grids half a patch apart: the same cells, pooled elsewhere."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from features_helpers import SIZES, contents, make, tiny_backbone
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from experiments.commands.features import app
from experiments.runs.config import plan
from libra_gym.backbones import Backbone, load_backbone, preprocess
from libra_gym.banks import load_bank
from libra_gym.counts import PATCH
from libra_gym.datasets import open_dataset
from libra_gym.datasets.views import full
from libra_gym.errors import LibraError
from libra_gym.features import build, build_features, open_features
from libra_gym.features.grids import HALF, cell_backbone, has_grids, moved_views, pool_grids
from libra_gym.tiling import whole_features


def pooling_backbone() -> Backbone:
    """Cells of 16 pixels that see nothing but themselves, and the pooling of four of them."""
    conv = nn.Conv2d(3, 5, HALF, HALF)
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=torch.Generator().manual_seed(1)) - 0.5)
    return Backbone("pooling", {"features": nn.Sequential(conv, nn.MaxPool2d(2, 2))})


@given(st.integers(1, 100), st.integers(1, 100), st.booleans())
def test_a_moved_view_has_a_feature_for_each_of_its_patches(height: int, width: int, mirror: bool) -> None:
    whole = full((height, width), mirror=mirror)
    views = moved_views(whole)
    cells = torch.zeros(1, 2 * whole.grid[0], 2 * whole.grid[1])
    assert views[0] == whole
    assert [view.grid for view in views] == [grid.shape[1:] for grid in pool_grids(cells)]


@pytest.mark.parametrize("mirror", [False, True])
def test_a_moved_grid_has_the_features_of_a_photo_cut_there(mirror: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (100, 150, 3), np.uint8)
    whole = full((100, 150), mirror=mirror)
    backbone = pooling_backbone()
    grids = pool_grids(cell_backbone(backbone)(preprocess(whole.apply_image(pixels))[None])[0])
    for view, seen in zip(moved_views(whole), grids, strict=True):
        alone = backbone(preprocess(view.apply_image(pixels))[None])[0]
        torch.testing.assert_close(seen, alone)


def test_a_bank_has_the_moved_grids_of_training_photos(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "plain", pooling_backbone(), mirror=True)
    make(photos, tmp_path / "out", pooling_backbone(), mirror=True, grids=True)
    plain, bank = open_features(tmp_path / "plain"), open_features(tmp_path / "out")
    assert bank.meta["grids"]
    assert not plain.meta["grids"]
    assert [image.name for image in bank.split("validation").images] == ["validation/v0.png", "validation/v1.png"]
    of_first = [image for image in bank.images if image.photo == "train/t0.png"]
    assert [image.name for image in of_first] == ["train/t0.png", *(f"train/t0.png#{k}" for k in range(1, 8))]
    assert [(image.rows, image.cols) for image in of_first] == 2 * [(2, 3), (2, 2), (1, 3), (1, 2)]
    dataset = open_dataset("folder", photos)
    for photo in dataset.photos("train"):
        size = photo.image().shape[0], photo.image().shape[1]
        looks = [full(size), full(size, mirror=True)]
        views = [view for look in looks for view in moved_views(look)]
        numbers = [i for i, image in enumerate(bank.images) if image.photo == photo.name]
        for number, view in zip(numbers, views, strict=True):
            patches = bank.patches_of(number)
            counts = view.patch_counts(photo.points(), size)
            np.testing.assert_allclose(bank.counts[patches].numpy(), counts.ravel())
            alone = pooling_backbone()(preprocess(view.apply_image(photo.image()))[None])[0].flatten(1).T
            torch.testing.assert_close(bank.features[patches].float(), alone, rtol=1e-3, atol=1e-3)


def test_whole_photos_are_as_they_are_without_further_grids(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "plain", pooling_backbone())
    make(photos, tmp_path / "out", pooling_backbone(), grids=True)
    plain, bank = open_features(tmp_path / "plain"), open_features(tmp_path / "out").wholes()
    assert bank.images == plain.images
    assert torch.equal(bank.features[:], plain.features[:])
    assert torch.equal(bank.counts, plain.counts)


def test_a_photo_of_which_there_are_only_crops_is_not_left_out(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "out", crops="paper")
    bank = open_features(tmp_path / "out")
    assert bank.wholes() is bank


def test_a_large_photo_has_the_same_grids_in_tiles(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(photos, tmp_path / "one", pooling_backbone(), grids=True, dtype=torch.float32)
    monkeypatch.setattr(build, "LARGE_PIXELS", 0)
    monkeypatch.setattr(build, "whole_features", partial(whole_features, tile_pixels=2 * PATCH**2))
    monkeypatch.setattr(build, "BATCH_PIXELS", 1)
    make(photos, tmp_path / "tiles", pooling_backbone(), grids=True, dtype=torch.float32)
    one, tiles = open_features(tmp_path / "one"), open_features(tmp_path / "tiles")
    torch.testing.assert_close(one.features[:], tiles.features[:])


def test_only_backbones_that_end_with_a_pooling_have_grids(photos: Path, tmp_path: Path) -> None:
    assert has_grids(load_backbone("vgg16", "random"))
    assert not has_grids(load_backbone("vgg16:multi", "random"))
    assert not has_grids(load_backbone("mobilenet_v3_large", "random"))
    with pytest.raises(LibraError, match="does not end with a pooling"):
        make(photos, tmp_path / "out", tiny_backbone(), grids=True)
    assert not (tmp_path / "out").exists()


def test_a_cache_that_was_begun_without_grids_is_not_continued_with_them(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "out", pooling_backbone())
    before = contents(tmp_path / "out")
    with pytest.raises(LibraError, match=r"grids False and this run has True.*--grids"):
        make(photos, tmp_path / "out", pooling_backbone(), grids=True)
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("options", "said"),
    [({"split": "validation"}, "no training split"), ({"crops": "paper"}, "leave grids out")],
)
def test_grids_that_would_do_nothing_are_refused(
    photos: Path, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(LibraError, match=said):
        make(photos, tmp_path / "out", pooling_backbone(), grids=True, **options)


def test_the_command_takes_grids(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "bank"
    source = ["--dataset", "folder", "--root", str(photos), "--weights", "random", "--scale", "1"]
    said = CliRunner().invoke(app, [*source, "--grids", "--workers", "0", "--out", str(out)])
    assert said.exit_code == 0, said.output
    bank = load_bank(str(out))
    assert len(bank.split("train").wholes().images) == len(SIZES) < len(bank.split("train").images)


def test_a_set_that_is_divided_into_folds_has_the_grids_of_all_photos(photos: Path, tmp_path: Path) -> None:
    dataset = open_dataset("folder", photos / "train")
    build_features(dataset, "all", pooling_backbone(), tmp_path / "out", grids=True, workers=0)
    bank = open_features(tmp_path / "out")
    assert len(bank.wholes().images) == len(SIZES) < len(bank.images)
    with pytest.raises(LibraError, match="'all' is no training split"):  # nothing would be left to judge by
        build_features(dataset, "all", pooling_backbone(), tmp_path / "crops", crops="paper", workers=0)


def test_a_run_learns_from_all_grids_and_is_judged_by_whole_photos(photos: Path, tmp_path: Path) -> None:
    make(photos, tmp_path / "bank", pooling_backbone(), grids=True, split="train")
    config = plan(str(tmp_path / "bank"), train_split="train:-1/3", validation_split="train:1/3", device="cpu")
    training, validation = config.open_bank()
    assert all(image.name == image.photo for image in validation.images)
    assert len(training.images) > len({image.photo for image in training.images}) > len(validation.images)
