"""A user's mistakes, in all commands: one sentence, and nothing is done."""

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from libra_gym.errors import LibraError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("count", "photo.jpg", "--card"), "counts nothing"),
        (("count", "--card", "--json"), "--json counts nothing with --card"),
        (
            ("reproduce", "game", "--root", "nowhere", "--weights", "imagenet", "--out", "tables"),
            "no directory 'nowhere'",
        ),
        (("evaluate", "dense", "--dataset", "folder", "--root", ".", "--device", "cuda9"), "no device 'cuda9'"),
        (("bench", "--only", "counts", "--out", "."), "is a directory"),
        (("release", "run", "--out", "nowhere/model.safetensors"), "no directory 'nowhere'"),
        (("release", "run", "--out", "model.safetensors"), "'run' is no directory of a run"),
        (("release", "run", "--out", "model.bin"), "ends with .safetensors, which 'model.bin' does not"),
        (("features", "--dataset", "folder", "--root", "nowhere", "--out", "bank"), "nowhere"),
        (("features", "--mirror", "verify", "bank"), "--mirror is not for `libra features verify`"),
        (("reproduce", "speed", "--seeds", "2", "--weights", "random", "--out", "tables"), "--seeds is not for"),
        (("pretrain", "--dataset", "folder", "--cache", "none", "--cache-dir", "x", "--out", "run"), "--cache-dir is"),
        (("pretrain", "--dataset", "folder", "--cache", "none", "--cache-gb", "2", "--out", "run"), "--cache-gb"),
        (("count", "photo.jpg", "--every", "5"), "--every is for videos"),
    ],
)
def test_mistakes_are_told_before_anything_is_done(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, LibraError)
    assert message in str(result.exception)
    assert list(tmp_path.iterdir()) == []
