"""Backbones: one feature vector per 32×32 patch, from any of the weights files that people have."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchvision.models import vgg16  # type: ignore[import-untyped]

from libra_gym.backbones import IMAGENET_MEAN, IMAGENET_STD, LEVELS, Backbone, learnt_scale, load_backbone, preprocess
from libra_gym.errors import LibraError

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "weights"
SMALL = "mobilenet_v3_large"


@pytest.fixture(scope="module")
def small() -> Backbone:
    return load_backbone(SMALL, "random")


def noise(height: int = 64, width: int = 96) -> Tensor:
    return torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(1))


CHANNELS = {
    "vgg16": 512,
    "vgg16_bn": 512,
    "resnet50": 2048,
    "mobilenet_v3_large": 960,
    "efficientnet_b0": 1280,
    "convnext_tiny": 768,
}
MULTI = {
    "vgg16": 256 + 512 + 512,
    "vgg16_bn": 256 + 512 + 512,
    "resnet50": 512 + 1024 + 2048,
    "mobilenet_v3_large": 40 + 112 + 960,
    "efficientnet_b0": 40 + 112 + 1280,
    "convnext_tiny": 192 + 384 + 768,
}


@pytest.mark.parametrize("name", LEVELS)
def test_every_backbone_has_one_vector_per_patch_of_one_level_or_three(name: str) -> None:
    multi = load_backbone(f"{name}:multi", "random")
    single = Backbone(name, dict(multi.named_children()))
    assert (single.channels, multi.channels) == (CHANNELS[name], MULTI[name])
    features, levels = single(noise()), multi(noise())
    assert features.shape == (1, CHANNELS[name], 2, 3)
    assert levels.shape == (1, MULTI[name], 2, 3)
    torch.testing.assert_close(levels[:, -single.channels :], features)


def test_levels_of_vgg16_are_the_pooled_conv3_conv4_and_conv5() -> None:
    multi = load_backbone("vgg16:multi", "random")
    conv = multi.get_submodule("features")
    assert isinstance(conv, torch.nn.Sequential)
    stops = ((17, 4), (24, 2), (31, 1))
    expected = [torch.nn.functional.avg_pool2d(conv[:stop](noise()), pool) for stop, pool in stops]
    torch.testing.assert_close(multi(noise()), torch.cat(expected, 1))


def test_a_backbone_is_frozen(small: Backbone) -> None:
    assert not small.training
    assert not any(parameter.requires_grad for parameter in small.parameters())
    assert torch.equal(small(noise()), small(noise()))


def test_random_weights_are_the_same_each_time_and_leave_the_random_state_alone(small: Backbone) -> None:
    state = torch.get_rng_state()
    again = load_backbone(SMALL, "random")
    assert torch.equal(state, torch.get_rng_state())
    assert again.weights_hash == small.weights_hash


def test_one_changed_weight_changes_the_hash(small: Backbone) -> None:
    other = load_backbone(SMALL, "random")
    next(iter(other.parameters()))[0, 0, 0, 0] += 1e-3
    assert other.weights_hash != small.weights_hash


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("keys", ["torchvision", "features", "bare", "checkpoint"])
def test_weights_files_of_all_kinds_agree(tmp_path: Path, small: Backbone, suffix: str, keys: str) -> None:
    state = small.state_dict()
    if keys == "torchvision":
        state |= {"classifier.0.weight": torch.zeros(2, 2)}
    elif keys == "bare":
        state = {key.removeprefix("features."): value for key, value in state.items()}
    elif keys == "checkpoint":
        state |= {
            "head.weight": torch.zeros(57, 512, 1, 1),
            "head.bias": torch.zeros(57),
            "bin_values": torch.zeros(57),
        }
    path = tmp_path / f"weights{suffix}"
    contiguous = {key: value.contiguous() for key, value in state.items()}
    save_file(contiguous, path) if suffix == ".safetensors" else torch.save(contiguous, path)
    assert load_backbone(SMALL, path).weights_hash == small.weights_hash


def test_half_precision_weights_compute_in_single_precision(tmp_path: Path, small: Backbone) -> None:
    half = {k: (v.half() if v.is_floating_point() else v).contiguous() for k, v in small.state_dict().items()}
    save_file(half, tmp_path / "half.safetensors")
    backbone = load_backbone(SMALL, tmp_path / "half.safetensors")
    assert {p.dtype for p in backbone.parameters()} == {torch.float32}
    assert backbone(noise()).dtype == torch.float32


def without_last(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if key != "features.16.1.bias"}


def reshaped(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return state | {"features.0.0.weight": torch.zeros(7)}


def with_more(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return state | {"features.17.weight": torch.zeros(1)}


@pytest.mark.parametrize(
    ("spoil", "key"),
    [(without_last, "features.16.1.bias"), (reshaped, "features.0.0.weight"), (with_more, "features.17.weight")],
)
def test_a_mismatch_names_the_first_wrong_key(tmp_path: Path, small: Backbone, spoil, key: str) -> None:  # type: ignore[no-untyped-def]
    state = {name: value.contiguous() for name, value in small.state_dict().items()}
    save_file(spoil(state), tmp_path / "wrong.safetensors")
    with pytest.raises(LibraError, match=f"'{key}'"):
        load_backbone(SMALL, tmp_path / "wrong.safetensors")


@pytest.mark.parametrize("name", ["broken.safetensors", "broken.pth", "absent.pth", "nested.pth"])
def test_a_file_that_holds_no_weights_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.startswith("broken"):
        path.write_bytes(b"not weights at all")
    elif name.startswith("nested"):
        torch.save({"epoch": 3}, path)
    with pytest.raises(LibraError, match=name):
        load_backbone(SMALL, path)


@pytest.mark.parametrize("name", ["vgg61", "vgg16:many", "vgg11:multi", "vit_b_16"])
def test_an_unsuitable_backbone_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(LibraError, match="vgg16"):
        load_backbone(name, "random")


@settings(max_examples=30, deadline=None)
@given(arrays(np.uint8, st.tuples(st.integers(1, 70), st.integers(1, 70), st.just(3))))
def test_preprocessing_normalises_and_pads_with_zeros_to_multiples_of_32(image: np.ndarray) -> None:
    height, width = image.shape[:2]
    out = preprocess(image).numpy()
    assert out.shape == (3, -(-height // 32) * 32, -(-width // 32) * 32)
    expected = (image / 255 - IMAGENET_MEAN) / IMAGENET_STD
    np.testing.assert_allclose(out[:, :height, :width], expected.transpose(2, 0, 1), atol=1e-5)
    assert not out[:, height:].any()
    assert not out[:, :, width:].any()


def test_a_batch_is_preprocessed_like_its_images() -> None:
    batch = np.random.default_rng(0).integers(0, 256, (4, 33, 40, 3), np.uint8)
    assert torch.equal(preprocess(batch), torch.stack([preprocess(image) for image in batch]))


@pytest.mark.real
@pytest.mark.skipif(not SHARED.is_dir(), reason="no weights next to the checkout")
def test_the_imagenet_features_are_those_of_torchvisions_vgg16() -> None:
    path = SHARED / "vgg16_imagenet_features.safetensors"
    conv = vgg16(init_weights=False).features
    conv.load_state_dict({key.removeprefix("features."): value for key, value in load_file(path).items()})
    torch.testing.assert_close(load_backbone("vgg16", path)(noise()), conv(noise()), atol=1e-4, rtol=1e-4)


@pytest.mark.real
@pytest.mark.skipif(not SHARED.is_dir(), reason="no weights next to the checkout")
def test_a_counting_checkpoint_loads_as_it_is() -> None:
    backbone = load_backbone("vgg16", SHARED / "vgg16_bcnet_sht_a.safetensors")
    assert backbone.channels == 512
    assert torch.isfinite(backbone(noise())).all()


def test_weights_say_how_large_the_photos_were_that_they_learnt_from(tmp_path: Path) -> None:
    def written(name: str, says: dict[str, object] | None) -> Path:
        metadata = None if says is None else {key: json.dumps(value) for key, value in says.items()}
        save_file({"features.0.weight": torch.zeros(2)}, tmp_path / name, metadata)
        return tmp_path / name

    assert (learnt_scale("dense"), learnt_scale("street")) == (1.5, 1.25)
    assert learnt_scale(written("run.safetensors", {"libra_gym.backbone": {"settings": {"scale": 0.5}}})) == 0.5
    assert learnt_scale(written("plain.safetensors", None)) == learnt_scale("imagenet") == 1.0
    torch.save({"features.0.weight": torch.zeros(2)}, tmp_path / "plain.pth")
    assert learnt_scale(tmp_path / "plain.pth") == 1.0
    (tmp_path / "torn.safetensors").write_bytes(b"{")
    with pytest.raises(LibraError, match=r"torn\.safetensors cannot be read"):
        learnt_scale(tmp_path / "torn.safetensors")
    with pytest.raises(LibraError, match="nowhere"):
        learnt_scale("nowhere.safetensors")


@pytest.mark.parametrize("name", ["r3d_18", "mvit_v1_b"])
def test_a_model_of_films_is_no_backbone(name):
    with pytest.raises(LibraError, match="no stride-32 feature map"):
        load_backbone(name, "random")
