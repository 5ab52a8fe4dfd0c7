"""The card of a released model."""

import pytest
from banks import make_bank
from pretrain_helpers import draw_split_crowds, libra

from experiments.card import read_notes
from libra_gym.counter import Counter
from libra_gym.errors import LibraError


@pytest.mark.parametrize(
    ("text", "missing"), [("## Limits\nMany.", "Licence"), ("## Licence\nCC0\n## Limits\n", "Limits")]
)
def test_a_card_says_limits_and_licence(tmp_path, text, missing):
    (tmp_path / "card.md").write_text(text)
    with pytest.raises(LibraError, match=missing):
        read_notes(tmp_path / "card.md")
    with pytest.raises(LibraError, match=r"absent\.md"):
        read_notes(tmp_path / "absent.md")


def test_a_card_names_the_released_model_that_it_began_with(tmp_path):
    data = ("--dataset", "folder", "--root", draw_split_crowds(tmp_path))
    libra("features", *data, "--weights", "dense", "--workers", 0, "--out", tmp_path / "bank")
    few = ("--epochs", 1, "--set", "learning_starts=20", "--set", "update_every=20", "--set", "batch_size=16")
    libra("train", "--bank", tmp_path / "bank", "--init", "dense", *few, "--out", tmp_path / "run")
    libra("release", tmp_path / "run", "--weights", "dense", "--out", tmp_path / "own.safetensors")
    card = Counter.load(tmp_path / "own.safetensors").card
    assert card["data"]["began with"] == ["dense"]
    assert card["licence"].startswith("not stated. It began with 'dense', whose card says:")
    assert "ShanghaiTech" in card["licence"]


def test_a_run_that_has_learnt_nothing_says_so_and_is_not_released(tmp_path):
    make_bank().save(tmp_path / "bank.safetensors")
    begun = ("train", "--bank", tmp_path / "bank.safetensors", "--epochs", 1, "--out", tmp_path / "run")
    assert "has made no update" in libra(*begun, status=2)
    assert "first epoch with an update" in libra(
        "release", tmp_path / "run", "--weights", "dense", "--out", tmp_path / "model.safetensors", status=2
    )
