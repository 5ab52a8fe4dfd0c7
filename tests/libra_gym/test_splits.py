"""Shares of a split, for cross-validation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from libra_gym.bank import BankImage, FeatureBank
from libra_gym.datasets import open_dataset
from libra_gym.errors import LibraError
from libra_gym.splits import is_training, left_out, may_train, part, parts


@given(st.sets(st.text(max_size=5), max_size=40), st.integers(2, 9))
def test_the_shares_of_a_split_are_even_and_are_all_of_it(names, of):
    shares = [part(f"train:{number}/{of}").pick(names) for number in range(1, of + 1)]
    assert sorted(name for share in shares for name in share) == sorted(names)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for number, share in enumerate(shares, 1):
        assert part(f"train:-{number}/{of}").pick(names) == names - share


def test_names_are_read():
    whole, share = parts("validation+fold1-train:-2/5")
    assert (whole.split, whole.name) == ("validation", "validation")
    assert whole.pick("abc") == set("abc")
    assert (share.split, share.number, share.of, share.but) == ("fold1-train", 2, 5, True)
    assert [is_training(name) for name in ("train", "fold1-train", "train:-1/5")] == [True] * 3
    assert [is_training(name) for name in ("validation", "train:1/5", "test:-1/5")] == [False] * 3


@pytest.mark.parametrize("share", ["", "1", "0/5", "6/5", "1/1", "a/b", "1/5/2", "1:5", "-", "-IMG_1,"])
def test_a_share_that_cannot_be_is_refused(share):
    with pytest.raises(LibraError, match=r"There is no share .* 'train:1/5' is the first of five"):
        part(f"train:{share}")


def test_photos_are_left_out_by_name():
    most = part("fold1-train:-34,37")
    assert (most.split, most.without) == ("fold1-train", {"34", "37"})
    assert most.pick(["34", "35", "36", "37"]) == {"35", "36"}
    assert part("train:-IMG_8,train/IMG_9").pick([f"train/IMG_{k}" for k in (8, 9, 18)]) == {"train/IMG_18"}
    assert is_training("fold1-train:-34,37")
    assert [may_train(name) for name in ("all", "all:-34,37", "fold1-train:-34")] == [True] * 3
    assert [may_train(name) for name in ("all:1/5", "all:-1/5", "validation:-34")] == [False] * 3
    assert left_out("train:-IMG_8,IMG_9+all:-1/5+x:-34") == ("train+all:-1/5+x", {"IMG_8", "IMG_9", "34"})
    assert not is_training("test:-34")
    with pytest.raises(LibraError, match=r"no photo '37' in the split 'fold1-train' .* called 34, 35, 36 "):
        most.pick(["34", "35", "36"])


def bank_of(names, split="train"):
    images = tuple(BankImage(name, split, 1, 2, (32, 64), 1.0) for name in names)
    return FeatureBank("bank", torch.rand(2 * len(images), 3), torch.rand(2 * len(images)), images)


def test_a_bank_shares_out_its_photos_with_all_their_views():
    views = [f"{photo}#{view}" for photo in "abcdefg" for view in ("full", "mirror")]
    bank = bank_of(views)
    judged, learnt = bank.split("train:1/3"), bank.split("train:-1/3")
    assert judged.quantizer == learnt.quantizer == bank.quantizer
    photos = {image.photo for image in judged.images}
    assert len(photos) == 3
    assert [image.name for image in judged.images] == [name for name in views if name[0] in photos]
    assert [image.name for image in learnt.images] == [name for name in views if name[0] not in photos]
    another = bank_of(sorted(photo for photo in "abcdefg"))  # another bank of the same photos shares them out alike
    assert {image.photo for image in another.split("train:1/3").images} == photos
    assert len(bank.split("train:1/3+train:2/3+train:3/3")) == len(bank)
    with pytest.raises(LibraError, match=r"no split 'test:1/3'; it has: train"):
        bank.split("test:1/3")
    with pytest.raises(LibraError, match="no split 'train:9/9'"):  # seven photos have no ninth share
        bank.split("train:9/9")


def test_a_bank_leaves_out_photos_with_all_their_views():
    bank = bank_of([f"{photo}#{view}" for photo in "abc" for view in ("full", "mirror")])
    assert [image.name for image in bank.split("train:-a,c").images] == ["b#full", "b#mirror"]
    with pytest.raises(LibraError, match="no split 'train:-a,b,c'"):  # nothing is left
        bank.split("train:-a,b,c")


def test_a_split_that_is_called_so_comes_first():
    """Of a bank that was made of a share, that share is all there is; names with a colon were always allowed."""
    bank = bank_of("abc", split="train:1/3")
    assert bank.split("train:1/3") is bank
    named = bank_of("abc", split="train:-a")
    assert named.split("train:-a") is named
    odd = bank_of("abc", split="camera:north")
    assert odd.split("camera:north") is odd


def test_a_share_of_a_fold():
    def divide(split, names):
        return ["fold1-test" if name == "a" else "fold1-train" for name in names] if split.startswith("fold1") else None

    bank = replace(bank_of("abcde", split="all"), divide=divide)
    assert len(bank.split("fold1-train:1/2").images) == 2
    assert {image.name for image in bank.split("fold1-train:1/2+fold1-train:2/2").images} == set("bcde")
    assert {image.name for image in bank.split("fold1-train:-b,d").images} == set("ce")
    with pytest.raises(LibraError, match="no photo 'a' in the split 'fold1-train'"):
        bank.split("fold1-train:-a")


def test_a_data_set_shares_out_its_photos_as_its_bank_does(tmp_path):
    import cv2

    for name in "abcdefghijkl":
        cv2.imwrite(str(tmp_path / f"{name}.png"), np.zeros((32, 64, 3), np.uint8))
        (tmp_path / f"{name}.csv").write_text("x,y\n3,4\n")
    data = open_dataset("folder", tmp_path)
    whole = [photo.name for photo in data.photos("all")]
    judged, learnt = ([photo.name for photo in data.photos(f"all:{share}")] for share in ("2/5", "-2/5"))
    assert sorted(judged + learnt) == sorted(whole)
    assert judged == [image.name for image in bank_of(whole, split="all").split("all:2/5").images]
    with pytest.raises(LibraError, match="12 photos, too few for 'all:20/20'"):
        data.photos("all:20/20")
    assert [photo.name for photo in data.photos("all:-c.png,l.png")] == [name for name in whole if name[0] not in "cl"]
    with pytest.raises(LibraError, match="no photo 'z' in the split 'all' to leave out"):
        data.photos("all:-c.png,z")
