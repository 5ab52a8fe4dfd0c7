"""A photo in tiles has the features of the photo in one piece."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision.models import get_model

from libra_gym import tiling
from libra_gym.backbones import STRIDE, Backbone, load_backbone, preprocess
from libra_gym.errors import LibraError
from libra_gym.tiling import reach, tiled_features, tiles


def vgg_like(width: int = 4, blocks: tuple[int, ...] = (2, 2, 3, 3, 3), levels: tuple[str, ...] = ()) -> Backbone:
    """VGG16's layers with few channels; weights that keep the signal alive to the last layer."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    before = 3
    for convolutions in blocks:
        for _ in range(convolutions):
            convolution = nn.Conv2d(before, width, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight)
            nn.init.uniform_(convolution.bias, 0.1, 0.5)
            layers += [convolution, nn.ReLU(inplace=True)]
            before = width
        layers.append(nn.MaxPool2d(2))
    return Backbone("small", {"features": nn.Sequential(*layers)}, levels)


def photo(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)


def whole(backbone: Backbone, pixels: np.ndarray) -> torch.Tensor:
    with torch.inference_mode():
        return backbone(preprocess(pixels)[None])[0]


def put_together(backbone: Backbone, pixels: np.ndarray, tile_pixels: int) -> tuple[torch.Tensor, int]:
    features = torch.full((backbone.channels, *(-(-side // STRIDE) for side in pixels.shape[:2])), torch.nan)
    number = 0
    for tile, part in tiled_features(backbone, pixels, tile_pixels):
        features[:, tile.rows, tile.cols] = part
        number += 1
    return features, number


def test_the_reach_of_vgg16_is_90_pixels():
    """Its receptive field is 212 pixels wide: the patch and 90 on either side."""
    assert reach(vgg_like()) == 90


@pytest.mark.parametrize(("name", "pixels"), [("vgg11", 59), ("vgg16", 90), ("vgg16_bn", 90), ("vgg19", 118)])
def test_every_plain_chain_has_a_reach(name, pixels):
    with torch.device("meta"):
        assert reach(get_model(name).features) == pixels


@pytest.mark.parametrize("name", ["mobilenet_v3_large", "efficientnet_b0", "convnext_tiny"])
def test_other_backbones_have_none_that_is_known(name):
    with torch.device("meta"):
        assert reach(get_model(name).features) is None


@pytest.mark.parametrize("levels", [(), ("features.16", "features.23", "features.30")])
@pytest.mark.parametrize("size", [(420, 500), (30, 2400), (389, 417)])
def test_tiles_equal_one_piece(size, levels):
    backbone, pixels = vgg_like(levels=levels), photo(*size)
    features, number = put_together(backbone, pixels, 64 * STRIDE**2)
    expected = whole(backbone, pixels)
    assert number > 1
    assert expected.std() > 0.01
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


def test_with_too_small_a_halo_they_would_not(monkeypatch):
    """The reach is not wider than it must be: with one patch less, tiles differ."""
    backbone, pixels = vgg_like(), photo(420, 500)
    monkeypatch.setattr(tiling, "reach", lambda _: 90 - 27)
    features, _ = put_together(backbone, pixels, 64 * STRIDE**2)
    assert (features - whole(backbone, pixels)).abs().max() > 1e-3


def test_a_small_photo_is_one_tile():
    backbone, pixels = vgg_like(), photo(100, 70)
    features, number = put_together(backbone, pixels, 64 * STRIDE**2)
    assert number == 1
    torch.testing.assert_close(features, whole(backbone, pixels))


def test_a_backbone_that_sees_the_whole_photo_gets_it_whole(monkeypatch):
    backbone, pixels = load_backbone("mobilenet_v3_large", "random"), photo(160, 200)
    features, number = put_together(backbone, pixels, STRIDE**2)
    assert number == 1
    torch.testing.assert_close(features, whole(backbone, pixels))
    monkeypatch.setattr(tiling, "UNTILED_PIXELS", 1000)
    with pytest.raises(LibraError, match=r"200 × 160.*mobilenet_v3_large.*make it smaller\."):
        put_together(backbone, pixels, STRIDE**2)


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 300), cols=st.integers(1, 300), halo=st.integers(0, 7), limit=st.integers(250, 3000))
def test_tiles_cover_each_patch_once_within_the_limit(rows, cols, halo, limit):
    covered = np.zeros((rows, cols), int)
    for tile in tiles(rows, cols, halo, limit):
        covered[tile.rows, tile.cols] += 1
        seen = np.zeros((rows, cols))[tile.seen_rows, tile.seen_cols]
        assert seen.size <= limit
        assert seen[tile.kept].shape == covered[tile.rows, tile.cols].shape
        for part, view, length in ((tile.rows, tile.seen_rows, rows), (tile.cols, tile.seen_cols, cols)):
            assert view.start == 0 or part.start - view.start >= halo
            assert view.stop == length or view.stop - part.stop >= halo
    assert (covered == 1).all()
