"""A small bank, and a run on it that nothing disturbed."""

import pytest
from banks import make_bank
from train_helpers import begin, libra


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch, request):
    """They take longer than all else in these runs."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("experiments.runs.pictures.draw", lambda *_: {})


@pytest.fixture
def pictures():
    """For tests that look at them."""


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    path = tmp_path_factory.mktemp("bank") / "bank.safetensors"
    make_bank(images=10, rows=6, cols=6).save(path)
    return path


@pytest.fixture(scope="module")
def whole(bank, tmp_path_factory):
    """A run of three epochs that nothing disturbed."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.runs.pictures.draw", lambda *_: {})
        libra(*begin(bank, run))
    return run
