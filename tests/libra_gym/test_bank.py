"""The feature bank."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from banks import make_bank

from libra_gym.bank import BankImage, FeatureBank
from libra_gym.banks import bank_names, load_bank, register_bank
from libra_gym.datasets.ucf_cc_50 import FOLDS, UCFCC50
from libra_gym.errors import LibraError
from libra_gym.quantizer import Quantizer


def test_an_image_is_a_slice(small_bank):
    for i, image in enumerate(small_bank.images):
        patches = small_bank.patches_of(i)
        assert patches.stop - patches.start == image.rows * image.cols
        assert (small_bank.image_of[patches] == i).all()
        assert small_bank.places[patches][:, 0].tolist() == [r for r in range(3) for _ in range(4)]
        assert small_bank.places[patches][:, 1].tolist() == [0, 1, 2, 3] * 3


def test_images_of_different_shapes():
    images = tuple(
        BankImage(str(i), "train", r, c, (r * 32, c * 32), 0.0) for i, (r, c) in enumerate([(1, 2), (3, 1), (2, 2)])
    )
    bank = FeatureBank("odd", torch.zeros(9, 4), torch.arange(9.0), images)
    assert bank.places.tolist() == [[0, 0], [0, 1], [0, 0], [1, 0], [2, 0], [0, 0], [0, 1], [1, 0], [1, 1]]
    assert bank.image_totals(bank.counts).tolist() == [1, 9, 26]


def test_intervals_follow_the_quantizer(small_bank):
    expected = small_bank.quantizer.quantize(small_bank.counts.numpy())
    np.testing.assert_array_equal(small_bank.intervals.numpy(), expected)
    coarse = small_bank.with_quantizer(Quantizer.integer(3))
    assert int(coarse.intervals.max()) == 3


def test_the_number_of_intervals_comes_from_the_counts(small_bank):
    assert int(small_bank.intervals.max()) == small_bank.num_intervals - 1


def test_splits_keep_the_quantizer_and_their_patches(small_bank):
    parts = [small_bank.split(name) for name in ("train", "validation", "test")]
    assert sum(len(part) for part in parts) == len(small_bank)
    assert all(part.quantizer == small_bank.quantizer for part in parts)
    np.testing.assert_array_equal(parts[2].features, small_bank.features[-12:])
    assert len(small_bank.split("validation+test")) == 24


def test_selecting_images_out_of_order(small_bank):
    picked = small_bank.select([4, 1])
    assert [image.name for image in picked.images] == ["image-4", "image-1"]
    np.testing.assert_array_equal(picked.features[:12], small_bank.features[48:60])


def test_banks_of_one_backbone_can_be_joined(small_bank):
    """Image after image, with the first one's quantizer."""
    other = make_bank(seed=1).split("train")
    joined = small_bank.join(other)
    assert joined.images == (*small_bank.images, *other.images)
    np.testing.assert_array_equal(joined.features, torch.cat([small_bank.features, other.features]))
    np.testing.assert_array_equal(joined.counts, torch.cat([small_bank.counts, other.counts]))
    assert joined.quantizer == small_bank.quantizer
    assert small_bank.join() is small_bank


def test_banks_of_other_backbones_cannot_be_joined(small_bank):
    seen, otherwise = (replace(small_bank, meta={"weights": letter * 64}) for letter in "ab")
    with pytest.raises(LibraError, match="bbbbbbbbbbbb"):
        seen.join(otherwise)
    wide = replace(small_bank, features=torch.zeros(len(small_bank), small_bank.channels + 1))
    with pytest.raises(LibraError, match="features a patch"):
        small_bank.join(wide)


@pytest.mark.parametrize("compress", [False, True])
def test_saving_and_loading(small_bank, tmp_path, compress):
    points = tuple(np.full((i, 2), i, dtype=np.float32) for i in range(6))
    bank = replace(small_bank, points=points, meta={"maker": "test"})
    bank.save(tmp_path / "bank.safetensors", compress=compress)
    again = FeatureBank.load(tmp_path / "bank.safetensors")
    span = small_bank.features.amax(0) - small_bank.features.amin(0)
    assert ((again.features - bank.features).abs() <= (span / 255 / 2 if compress else 0 * span) + 1e-6).all()
    assert again.images == bank.images
    assert again.quantizer == bank.quantizer
    assert again.meta == bank.meta
    np.testing.assert_array_equal(again.counts, bank.counts)
    for ours, theirs in zip(again.points, points, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_every_part_of_a_split_must_be_there(small_bank):
    assert len(small_bank.split("train+validation").images) == 5
    with pytest.raises(LibraError, match="no split 'validatoin'"):
        small_bank.split("train+validatoin")


def test_the_demo_bank_is_small_embedded_and_complete():
    file = Path(__import__("libra_gym").__file__).parent / "assets" / "demo.safetensors"
    assert file.stat().st_size < 4_000_000
    bank = load_bank("demo")
    assert bank.channels == 512
    assert len(bank) > 2000
    assert {image.split for image in bank.images} == {"train", "validation", "test"}
    assert bank.points is not None
    assert bank.num_intervals > 30


def test_banks_are_shared_not_copied():
    assert load_bank("demo", "train") is load_bank("demo", "train")
    bank = load_bank("demo")
    assert copy.deepcopy(bank) is bank


def test_a_bank_can_be_registered():
    register_bank("mine", make_bank)
    try:
        assert "mine" in bank_names()
        assert load_bank("mine", "train").name == "small"
    finally:
        from libra_gym import banks as module

        module._NAMED.pop("mine")
        module._open_bank.cache_clear()


def test_a_file_that_was_written_anew_is_read_anew(tmp_path, monkeypatch):
    path = tmp_path / "bank.safetensors"
    whole = make_bank()
    whole.select([0]).save(path)
    assert len(load_bank(str(path)).images) == 1
    whole.save(path)
    assert len(load_bank(str(path)).images) == len(whole.images)
    monkeypatch.chdir(tmp_path)
    assert len(load_bank("bank.safetensors").images) == len(whole.images)
    other = tmp_path / "other"
    other.mkdir()
    whole.select([0, 1]).save(other / "bank.safetensors")
    monkeypatch.chdir(other)
    assert len(load_bank("bank.safetensors").images) == 2  # another file of the same relative name


def test_no_image_is_no_bank():
    with pytest.raises(LibraError, match="needs at least one"):
        make_bank().select([])


# ----------------------------------------------------------------------------------------------------------- bad input


def test_an_unknown_bank_is_named():
    with pytest.raises(LibraError, match=r"nowhere.*demo"):
        load_bank("nowhere")


def test_an_unknown_split_names_those_that_are_there(small_bank):
    with pytest.raises(LibraError, match=r"spring.*test, train, validation"):
        small_bank.split("spring")


def test_a_wrong_file_is_named(tmp_path):
    text = tmp_path / "notes.safetensors"
    text.write_text("not tensors")
    with pytest.raises(LibraError, match=r"notes\.safetensors"):
        load_bank(str(text))
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(2)}, str(tmp_path / "other.safetensors"))
    with pytest.raises(LibraError, match=r"other\.safetensors.*not a libra-gym bank"):
        load_bank(str(tmp_path / "other.safetensors"))


def test_nan_features_are_found(small_bank):
    features = small_bank.features.clone()
    features[17, 3] = float("nan")
    with pytest.raises(LibraError, match="17"):
        replace(small_bank, features=features)


def test_mismatched_sizes_are_named(small_bank):
    with pytest.raises(LibraError, match=r"\(71, 16\).*72"):
        replace(small_bank, features=small_bank.features[1:])
    with pytest.raises(LibraError, match="counts"):
        replace(small_bank, counts=small_bank.counts[1:])


@pytest.mark.parametrize("count", [-0.5, float("nan")])
def test_impossible_counts_are_refused(small_bank, count):
    counts = small_bank.counts.clone()
    counts[0] = count
    with pytest.raises(LibraError, match="count"):
        replace(small_bank, counts=counts)


def test_a_bank_with_no_patches_is_refused():
    with pytest.raises(LibraError, match="no patches"):
        FeatureBank("empty", torch.zeros(0, 4), torch.zeros(0), ())


def test_a_bank_of_all_photos_is_divided_into_folds():
    images = tuple(BankImage(str(k), "all", 1, 2, (32, 64), 1.0) for k in range(1, 51))
    counts = torch.linspace(0.0, 3.0, 100)
    bank = FeatureBank("all", torch.rand(100, 4), counts, images, divide=UCFCC50.divide)
    train = bank.split("fold2-train")
    rest = bank.split("fold2-validation+fold2-test")
    assert (len(train.images), len(rest.images)) == (36, 14)
    assert {image.split for image in rest.images} == {"fold2-validation", "fold2-test"}
    assert {int(image.name) for image in bank.split("fold2-test").images} == set(FOLDS[1])
    fitted = Quantizer.fit_log(train.counts.numpy(), readout="mean")
    assert train.quantizer == fitted == rest.quantizer  # nothing of the test photos shows in the intervals
    with pytest.raises(LibraError, match="no split 'fold9-train'"):
        bank.split("fold9-train")


def test_a_file_of_all_photos_is_divided_into_folds_too(tmp_path):
    images = tuple(BankImage(str(k), "all", 1, 1, (32, 32), 1.0) for k in range(1, 51))
    bank = FeatureBank("all", torch.rand(50, 4), torch.ones(50), images, meta={"dataset": "ucf_cc_50"})
    for number, (divide, folds) in enumerate(((UCFCC50.divide, True), (None, False))):
        path = tmp_path / f"{number}.safetensors"
        replace(bank, divide=divide).save(path)
        opened = FeatureBank.load(path)
        assert (opened.divide is not None) == folds
        if folds:
            assert len(opened.split("fold2-test").images) == 10


def test_a_hand_made_bank_fits_its_intervals_to_its_training_images():
    images = tuple(
        BankImage(name, name, 1, 2, (32, 64), float(people)) for name, people in {"train": 3, "test": 61}.items()
    )
    bank = FeatureBank("own", torch.zeros(4, 2), torch.tensor([1.0, 2.0, 30.0, 31.0]), images)
    assert bank.quantizer == Quantizer.fit_log(np.array([1.0, 2.0], np.float32), readout="mean")


def test_an_images_numbers_may_be_of_any_kind(tmp_path):
    image = BankImage("a", "train", np.int64(1), np.int32(2), (np.int64(32), np.int64(64)), np.float32(3))
    FeatureBank("own", torch.zeros(2, 2), torch.tensor([1.0, 2.0]), (image,)).save(tmp_path / "bank.safetensors")
    assert FeatureBank.load(tmp_path / "bank.safetensors").images == (image,)
    assert repr(BankImage("a", "train", 1, 2, (32, 64), 3).people) == "3"  # as it was: fingerprints are of the text


def test_images_may_be_selected_by_a_mask(small_bank):
    crowded = small_bank.people > small_bank.people.median()
    for mask in (crowded, crowded.numpy(), crowded.tolist()):
        assert small_bank.select(mask).images == small_bank.select(np.flatnonzero(crowded)).images


@pytest.mark.parametrize("wrong", [[9], [-1], [0.5], [[0, 1]], [True]])
def test_images_that_are_not_there_are_named(small_bank, wrong):
    with pytest.raises(LibraError, match=r"Image -?\d is not in bank 'small'|Images are chosen by whole numbers"):
        small_bank.select(wrong)
