"""What all tests of the feature cache begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from features_helpers import SIZES, write_photo

from libra_gym.features import build


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads cost more than they bring here, and do not survive a fork."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PHOTOS_PER_SHARD", 2)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for number, size in enumerate(SIZES):
        write_photo(root / "train", f"t{number}", size, people=7 * number, seed=number)
    for number in range(2):
        write_photo(root / "validation", f"v{number}", (50, 100), people=9, seed=100 + number)
    return root
