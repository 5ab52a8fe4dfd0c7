"""One-step heads, the yardsticks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from banks import make_bank

from agents.heads import Head, HeadSettings, HeadTrainer
from libra_gym.errors import LibraError


@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("hidden", [(), (32, 32)])
def test_heads_learn_what_the_features_tell(kind, hidden):
    bank = make_bank(images=60)
    trainer = HeadTrainer(bank, HeadSettings(kind=kind, hidden=hidden, epochs=30, learning_rate=1e-2, batch_size=64))
    before = trainer.head.evaluate(bank).mae
    losses = list(trainer.epochs())
    assert losses[-1] < 0.8 * losses[0]
    assert trainer.head.evaluate(bank).mae < 0.7 * before


def test_readouts_of_a_classifier(small_bank):
    head = Head(HeadSettings(), small_bank.channels, small_bank.quantizer)
    likeliest, intervals = head.count(small_bank, "argmax")
    mean, none = head.count(small_bank, "expectation")
    assert none is None
    np.testing.assert_allclose(likeliest, np.asarray(small_bank.quantizer.values)[intervals], rtol=1e-6)
    logits = head.eval()(small_bank.features)
    expected = logits.softmax(1) @ torch.tensor(small_bank.quantizer.values, dtype=torch.float32)
    torch.testing.assert_close(mean, expected.detach())


def test_counts_are_never_negative(small_bank):
    head = Head(HeadSettings(kind="regression"), small_bank.channels, small_bank.quantizer)
    counts, _ = head.count(small_bank)
    assert (counts >= 0).all()


@pytest.mark.parametrize("quantile", [0.3, 0.5, 0.8])
def test_a_regressor_that_cannot_tell_patches_apart_gives_the_quantile(small_bank, quantile):
    blind = replace(small_bank, features=torch.zeros(len(small_bank), 4))
    settings = HeadSettings("regression", quantile=quantile, epochs=300, learning_rate=0.05)
    trainer = HeadTrainer(blind, settings)
    list(trainer.epochs())
    said = float(trainer.head.count(blind)[0][0])
    assert abs(float((small_bank.counts < said).float().mean()) - quantile) < 0.1


def test_same_seed_same_head(small_bank):
    first, second = (HeadTrainer(small_bank, HeadSettings(epochs=2, seed=3)) for _ in range(2))
    assert list(first.epochs()) == list(second.epochs())


def test_saving_and_loading(small_bank, tmp_path):
    trainer = HeadTrainer(small_bank, HeadSettings(hidden=(8,), epochs=1))
    list(trainer.epochs())
    trainer.head.save(tmp_path / "head.safetensors")
    again = Head.load(tmp_path / "head.safetensors")
    assert again.settings == trainer.head.settings
    torch.testing.assert_close(again.count(small_bank)[0], trainer.head.count(small_bank)[0])


def test_bad_kinds_and_files_are_named(tmp_path):
    with pytest.raises(LibraError, match="guess"):
        HeadSettings(kind="guess")
    with pytest.raises(LibraError, match="between 0 and 1"):
        HeadSettings(kind="regression", quantile=1.0)
    with pytest.raises(LibraError, match="only a regressor"):
        HeadSettings(quantile=0.6)
    with pytest.raises(LibraError, match="missing"):
        Head.load(tmp_path / "missing.safetensors")


def test_readouts_and_banks_that_a_head_does_not_know_are_named(small_bank):
    head = Head(HeadSettings(), small_bank.channels, small_bank.quantizer)
    with pytest.raises(LibraError, match=r"readout is 'expectaton'.*argmax, expectation"):
        head.evaluate(small_bank, "expectaton")
    with pytest.raises(LibraError, match="has 3 features a patch, but this head was trained on 16"):
        head.evaluate(make_bank(channels=3))
