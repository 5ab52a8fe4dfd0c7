"""`cell_loss`: what a patch's four cells hold is learnt beside the patch, and left behind when it is done."""

import numpy as np
import pytest
import torch
from pretraining_helpers import LEVELS, settings, vgg

from agents.pretraining import Pretrainer
from agents.pretraining.looks import Crop, make_look
from agents.pretraining.network import CellClassifier, PatchCounter
from libra_gym.backbones import load_backbone, read_weights
from libra_gym.errors import LibraError


def trainer(crowd, backbone=None, **changes) -> Pretrainer:
    return Pretrainer(settings(**{"cell_loss": 0.5, **changes}), backbone or vgg(), crowd, where="ram")


@pytest.mark.parametrize("number", range(4))
def test_the_cells_of_a_patch_hold_its_people(scene, number):
    look = make_look(scene, settings(scales=(0.7, 1.4)), number, np.random.default_rng(number))
    patches, inside = Crop(0, 0, 128).counts(look, scene.density)
    cells, within = Crop(0, 0, 128).counts(look, scene.density, 16)
    torch.testing.assert_close(cells.reshape(4, 2, 4, 2).sum((1, 3)), patches, rtol=1e-4, atol=1e-5)
    assert torch.equal(within.reshape(4, 2, 4, 2).any(3).any(1), inside)
    assert torch.equal(within[::2, ::2], inside)


def test_it_begins_with_the_intervals_shares_and_tells_the_features_nothing():
    people = np.random.default_rng(0).exponential(0.3, 500).astype(np.float32) * (np.arange(500) % 2)
    head = CellClassifier(4, people)
    features = torch.randn(1, 4, 3, 3, requires_grad=True)
    out = head(features)
    shares = np.bincount(head.quantizer.quantize(people)) / len(people)
    np.testing.assert_allclose(out.softmax(1)[0, :, 1, 1].detach(), shares, atol=0.05)
    head.loss(out, torch.rand(1, 3, 3), torch.ones(1, 3, 3, dtype=torch.bool), 0.5).backward()
    assert not features.grad.any()
    assert head.layer.weight.grad.any()


def test_the_first_head_sees_what_it_sees_without_cells(crowd):
    both = trainer(crowd).counter
    alone = PatchCounter(both.trunk, both.head)
    maps = torch.rand(2, 8, 16, 16)
    out = both(maps)
    assert torch.equal(out.patches, alone(maps).patches)
    assert alone(maps).cells is None
    rows, cols = out.patches.shape[-2:]
    assert out.cells.shape[-2:] == (2 * rows, 2 * cols)


@pytest.mark.parametrize("method", ["bcnet", "regression", "tasselnetv2"])
def test_cells_are_learnt(crowd, method):
    made = trainer(
        crowd,
        method=method,
        train_from="conv2_1",
        epochs=12,
        learning_rate=3e-3,
        head_learning_rate=1e-2,
        crops_per_photo=4,
    )
    losses = [made.learn_epoch() for _ in range(12)]
    assert losses[-1] < 0.95 * losses[0]
    assert made.counter.cells.layer.weight.any()


def test_the_loss_adds_that_of_the_cells_to_that_of_the_patches(crowd):
    losses = {}
    for weight in (0.0, 0.5, 1.0):
        made = trainer(crowd, cell_loss=weight, learning_rate=0.0, head_learning_rate=0.0)
        losses[weight] = made.learn_epoch()
    added = losses[0.5] - losses[0.0]
    assert added > 0.1
    assert losses[1.0] - losses[0.5] == pytest.approx(added, rel=1e-3)


def test_the_backbone_is_saved_without_them(crowd, tmp_path):
    plain = Pretrainer(settings(), vgg(), crowd, where="ram")
    saved = []
    for number, made in enumerate((plain, trainer(crowd))):
        made.learn_epoch()
        made.save_weights(tmp_path / f"{number}.safetensors", {})
        saved.append(read_weights(tmp_path / f"{number}.safetensors"))
    assert saved[0].keys() == saved[1].keys()
    assert not torch.equal(saved[0]["features.12.weight"], saved[1]["features.12.weight"])


def test_going_on_from_a_state_is_the_same_run(crowd):
    whole = trainer(crowd, average=0.5)
    whole.learn_epoch()
    tensors, numbers = whole.state()
    tensors = {key: value.clone() for key, value in tensors.items()}
    resumed = trainer(crowd, average=0.5)
    resumed.load_state(tensors, numbers)
    assert resumed.learn_epoch() == whole.learn_epoch()
    assert torch.equal(resumed.counter.cells.layer.weight, whole.counter.cells.layer.weight)


@pytest.mark.parametrize(
    ("backbone", "train_from"),
    [
        (lambda: load_backbone("mobilenet_v3_large", "random"), "features.13"),
        (lambda: vgg(levels=LEVELS), "conv4_1"),
        (vgg, "head"),
    ],
)
def test_a_backbone_without_cells_is_refused(crowd, backbone, train_from):
    with pytest.raises(LibraError, match=f"cell_loss needs a backbone.*{train_from!r}.*leave it at 0"):
        trainer(crowd, backbone(), train_from=train_from)
