"""Photo in, number out, from one file."""

import copy
import json
import subprocess
import sys
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from safetensors import safe_open

import libra_gym
from libra_gym import counter as module
from libra_gym import models, tiling
from libra_gym.backbones import load_backbone, preprocess, read_weights
from libra_gym.bank import BankImage, FeatureBank
from libra_gym.counter import Counter
from libra_gym.errors import LibraError
from libra_gym.kind import Kind
from libra_gym.models import RELEASED, find_model
from libra_gym.network import NetworkSettings, ScaleNetwork, standard
from libra_gym.quantizer import Quantizer
from libra_gym.task import WeighingTask
from libra_gym.uncertainty import Uncertainty
from libra_gym.weigher import Weigher

BACKBONE = "resnet18"
INTERVAL = Uncertainty(0.8, 1.0, 0.25, 30, 0.8, 0.9, 0.7)


def make_weigher(channels, seed=0):
    """A scale that has learnt nothing, but answers differently to different patches."""
    torch.manual_seed(seed)
    quantizer = Quantizer.log(40)
    settings = NetworkSettings(channels=channels, hidden=(32,), q_scale=1.0, init_std=None)
    return Weigher(ScaleNetwork(settings), WeighingTask.intervals(40), quantizer, {"bank": "none"})


@pytest.fixture(scope="module")
def backbone():
    return load_backbone(BACKBONE, "random")


@pytest.fixture(scope="module")
def counter(backbone):
    weigher = make_weigher(backbone.channels)
    with torch.inference_mode():
        features = backbone(preprocess(photo())[None])[0]
    weigher.network.normalise(*standard(features.flatten(1).mT))
    return Counter(backbone, weigher, INTERVAL, {"limits": "It has learnt nothing."})


def photo(height=150, width=200):
    small = np.random.default_rng(0).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def test_a_photo_is_counted_as_its_bank_would_be(counter):
    """The same number as by way of a feature bank and the evaluator."""
    with torch.inference_mode():
        features = counter.backbone(preprocess(photo())[None])[0].flatten(1).mT
    place = BankImage("photo", "test", 5, 7, (150, 200), 10.0)
    bank = FeatureBank("one", features, torch.zeros(35), (place,))
    counted = counter.count(photo())
    assert counted.count == pytest.approx(counter.weigher.evaluate(bank).records[0].count)
    assert counted.count > 0
    assert counted.patch_map.shape == (5, 7)
    assert counted.patch_map.std() > 0
    assert counted.count == pytest.approx(counted.patch_map.sum())
    assert (counted.low, counted.high) == INTERVAL.interval(counted.count)
    assert counted.coverage == 0.8
    assert counted.seconds > 0


def test_files_regions_and_sizes(counter, tmp_path):
    path = tmp_path / "photo.png"
    cv2.imwrite(str(path), photo()[..., ::-1])
    assert counter.count(path).count == counter.count(str(path)).count == counter.count(photo()).count
    part = counter.count(path, region=(32, 64, 96, 64))
    assert part.patch_map.shape == (2, 3)
    assert (part.low, part.high, part.coverage) == (None, None, None)  # which are of whole photos
    assert part.count == counter.count(photo()[64:128, 32:128]).count
    assert counter.count(path, max_side=100).patch_map.shape == (3, 4)


def test_photos_are_counted_in_the_size_that_the_model_learnt_from(counter):
    larger = Counter(counter.backbone, copy.copy(counter.weigher))
    larger.weigher.about = {"bank": "none", "scale": 1.5}
    assert (counter.scale, larger.scale) == (1.0, 1.5)
    np.testing.assert_array_equal(counter.look(photo()), photo())
    seen = larger.look(photo())
    assert seen.shape == (225, 300, 3)
    counted = larger.count(photo())
    assert counted.patch_map.shape == (8, 10)
    np.testing.assert_array_equal(counted.patch_map, counter.count(seen).patch_map)
    assert counted.count != counter.count(photo()).count
    assert larger.count(photo(), max_side=100).patch_map.shape == (4, 5)  # 75 × 100, then 112 × 150


def test_photos_are_limited_in_size_as_those_of_the_training_were(counter):
    """The paper makes UCF-QNRF's no larger than 2,048 pixels on the shorter side."""
    weigher = Weigher(counter.weigher.network, counter.weigher.task, counter.weigher.quantizer, {"dataset": "ucf_qnrf"})
    limited = Counter(counter.backbone, weigher)
    large, small = np.zeros((3000, 4000, 3), np.uint8), np.zeros((300, 400, 3), np.uint8)
    assert limited.look(large).shape == (2048, 2731, 3)
    assert limited.look(small).shape == small.shape
    assert counter.look(large).shape == large.shape


def test_a_view_of_pixels_is_counted_like_a_copy(counter):
    bgr = photo()
    assert counter.count(bgr[:, :, ::-1]).count == counter.count(bgr[:, :, ::-1].copy()).count


def test_a_photo_in_tiles_gives_the_same_count(monkeypatch):
    """Of a chain of convolutions, whose patches see only their surroundings."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(32)]
    chain = module.Backbone("chain", {"features": torch.nn.Sequential(*layers)})
    weigher = make_weigher(8)
    with torch.inference_mode():
        weigher.network.normalise(*standard(chain(preprocess(photo(600, 500))[None])[0].flatten(1).mT))
    counter = Counter(chain, weigher)
    whole = counter.count(photo(600, 500))
    monkeypatch.setattr(tiling.tiled_features, "__defaults__", (25 * 32**2,))
    tiled = counter.count(photo(600, 500))
    np.testing.assert_array_equal(tiled.patch_map, whole.patch_map)
    assert len(np.unique(whole.patch_map)) > 1
    assert (whole.low, whole.high, whole.coverage) == (None, None, None)


def test_real_valued_counts_are_counted_too(backbone):
    task = WeighingTask.counts(20.0)
    settings = NetworkSettings(
        channels=backbone.channels, steps=task.max_steps, actions=task.num_actions, hidden=(16,), init_std=None
    )
    torch.manual_seed(0)
    counted = Counter(backbone, Weigher(ScaleNetwork(settings), task, None)).count(photo())
    ticks = counted.patch_map / task.tick
    np.testing.assert_allclose(ticks, np.round(ticks), atol=1e-2)
    assert counted.count > 0


# ------------------------------------------------------------------------------------------------------------ the file


def test_a_file_holds_everything(counter, tmp_path):
    counter.save(tmp_path / "model.safetensors", "float32")
    again = Counter.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.count(photo()).patch_map, counter.count(photo()).patch_map)
    assert again.backbone.weights_hash == counter.backbone.weights_hash
    assert again.uncertainty == counter.uncertainty
    assert again.card == counter.card
    assert again.weigher.quantizer == counter.weigher.quantizer
    assert again.weigher.about == counter.weigher.about


def test_half_precision_halves_the_file_and_computes_in_single(counter, tmp_path):
    counter.save(tmp_path / "whole.safetensors", "float32")
    counter.save(tmp_path / "half.safetensors")
    half, whole = ((tmp_path / f"{name}.safetensors").stat().st_size for name in ("half", "whole"))
    assert half < 0.55 * whole
    again = Counter.load(tmp_path / "half.safetensors")
    for network in (again.backbone, again.weigher.network):
        assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert again.count(photo()).count == pytest.approx(counter.count(photo()).count, rel=0.02)


def test_statistics_and_biases_keep_their_precision(counter, tmp_path):
    counter.save(tmp_path / "half.safetensors")
    again = Counter.load(tmp_path / "half.safetensors")
    assert torch.equal(again.weigher.network.mean, counter.weigher.network.mean)
    assert torch.equal(again.weigher.network.out.bias, counter.weigher.network.out.bias)


def test_the_file_serves_as_the_weights_of_its_backbone(counter, tmp_path):
    counter.save(tmp_path / "model.safetensors", "float32")
    backbone = load_backbone(BACKBONE, tmp_path / "model.safetensors")
    assert backbone.weights_hash == counter.backbone.weights_hash


def test_weights_that_half_precision_cannot_hold_are_refused(backbone, tmp_path):
    weigher = make_weigher(backbone.channels)
    with torch.no_grad():
        weigher.network.out.weight[0, 0] = 1e6
    with pytest.raises(LibraError, match=r"weigher\.out\.weight"):
        Counter(backbone, weigher).save(tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


def test_a_scale_needs_the_features_it_was_trained_on(backbone):
    with pytest.raises(LibraError, match=r"512 features.*16"):
        Counter(backbone, make_weigher(16))


@pytest.mark.parametrize("content", ["nonsense", None])
def test_what_is_no_model_is_named(tmp_path, content):
    path = tmp_path / "thing.safetensors"
    if content:
        path.write_text(content)
    with pytest.raises(LibraError, match=r"thing\.safetensors"):
        Counter.load(path)


def test_a_scale_without_its_backbone_is_told_what_it_needs(backbone, tmp_path):
    make_weigher(16).save(tmp_path / "best.safetensors")
    with pytest.raises(LibraError, match="libra release"):
        Counter.load(tmp_path / "best.safetensors")


def test_a_file_for_other_preprocessing_is_refused(counter, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PREPROCESSING", {"colour": "BGR"})
    counter.save(tmp_path / "model.safetensors")
    monkeypatch.undo()
    with pytest.raises(LibraError, match="another way"):
        Counter.load(tmp_path / "model.safetensors")


def test_the_header_is_plain_json(counter, tmp_path):
    counter.save(tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        header = json.loads(file.metadata()[module.FORMAT])
    assert header["backbone"] == BACKBONE
    assert header["uncertainty"]["coverage"] == 0.8
    assert header["card"] == {"limits": "It has learnt nothing."}


# -------------------------------------------------------------------------------------------------------- from outside


def test_the_package_counts_by_itself(counter, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "MODELS", tmp_path)
    counter.save(tmp_path / "dense.safetensors", "float32")
    replaced = Counter(counter.backbone, counter.weigher, replace(INTERVAL, width=0.5))
    replaced.save(tmp_path / "street.safetensors", "float32")
    module._loaded.cache_clear()
    dense, street = libra_gym.count(photo()), libra_gym.count(photo(), "street")
    assert dense.count == street.count == counter.count(photo()).count
    assert street.high > dense.high
    module._loaded.cache_clear()


def test_a_model_that_was_written_anew_is_read_anew(counter, tmp_path):
    path = tmp_path / "model.safetensors"
    counter.save(path)
    before = libra_gym.count(photo(), path)
    assert module._loaded(path.resolve(), path.stat().st_mtime_ns, path.stat().st_size).count(photo()).high
    Counter(counter.backbone, counter.weigher, replace(INTERVAL, width=0.5)).save(path)
    assert libra_gym.count(photo(), path).high > before.high
    module._loaded.cache_clear()


def test_a_model_needs_no_ending(counter, tmp_path):
    counter.save(tmp_path / "mymodel")
    assert Counter.load(tmp_path / "mymodel").count(photo()).high is not None


def test_the_advice_for_a_photo_that_is_too_large_helps(backbone, monkeypatch):
    monkeypatch.setattr(tiling, "UNTILED_PIXELS", 64**2)
    monkeypatch.setattr(module, "UNTILED_SIDE", 64)
    weigher = make_weigher(backbone.channels)
    weigher.about["scale"] = 1.5
    with pytest.raises(LibraError, match="max_side=42"):
        Counter(backbone, weigher).count(photo())
    Counter(backbone, weigher).count(photo(), max_side=42)


def test_a_model_that_does_not_ship_yet_says_how_to_make_one(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "MODELS", tmp_path)
    with pytest.raises(LibraError, match=r"'dense'.*libra train.*libra release"):
        find_model("dense")
    with pytest.raises(LibraError, match=r"'crowd'.*dense, street"):
        find_model("crowd")


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((5, 5), np.uint8), np.zeros((5, 5, 4), np.uint8), np.zeros((5, 5, 3)), np.zeros((0, 5, 3), "u1")],
)
def test_pixels_of_another_kind_are_refused(counter, pixels):
    with pytest.raises(LibraError, match="uint8"):
        counter.count(pixels)


def test_importing_the_package_loads_no_vision_library():
    code = "import sys, libra_gym; print([m for m in ('torchvision', 'cv2', 'PIL', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torchvision" not in done.stdout
    assert "matplotlib" not in done.stdout


# ------------------------------------------------------------------------------------------------------ what is shipped


def test_a_head_in_the_file_changes_no_count(counter, tmp_path):
    head = {"layer.weight": torch.randn(40, 512, 1, 1), "layer.bias": torch.randn(40)}
    counter.save(tmp_path / "model.safetensors", head=head)
    counter.save(tmp_path / "without.safetensors")
    assert torch.equal(read_weights(tmp_path / "model.safetensors")["head.layer.bias"], head["layer.bias"])
    with_head, without = (Counter.load(tmp_path / f"{name}.safetensors") for name in ("model", "without"))
    assert with_head.count(photo()).count == without.count(photo()).count


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_model_lends_its_backbone_by_name(name):
    assert load_backbone("vgg16", name).weights_hash == Counter.load(name).backbone.weights_hash
    with pytest.raises(LibraError, match="not those of 'resnet18'"):
        load_backbone("resnet18", name)


def test_a_photo_that_is_made_smaller_as_those_of_the_training_were_is_compared_as_it_is_then():
    counter = Counter.load("dense")
    large = np.zeros((6, 9, 3), np.uint8).repeat(1000, 0).repeat(1000, 1)
    assert counter._natural_size(large) == (6000, 9000)
    counter.weigher.about |= {"dataset": "ucf_qnrf", **Kind(longest_side=1600).to_dict()}
    assert counter._natural_size(large) == (2048, 3072)
    assert counter.kind.too_large(counter._natural_size(large)) is None


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_model_counts_right_after_installation(name):
    path = find_model(name)
    assert path.stat().st_size <= 36_000_000
    counter = Counter.load(name)
    assert {"data", "recipe", "validation", "limits", "licence"} <= counter.card.keys()
    assert "ShanghaiTech" in counter.card["licence"]
    assert counter.kind.longest_side == 1024
    counted = counter.count(np.full((96, 128, 3), 127, np.uint8))
    assert counted.patch_map.shape == {1.0: (3, 4), 1.25: (4, 5), 1.5: (5, 6)}[counter.scale]
    assert "128 pixels" in counted.hint.fact
    assert counted.low is counted.high is None
    assert counted.count < 12  # nobody stands on a grey wall
