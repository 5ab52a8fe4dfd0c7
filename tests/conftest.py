"""Small banks and where the real data are, for all tests."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from libra_gym.bank import BankImage, FeatureBank
from libra_gym.counts import patch_counts
from libra_gym.metrics import Score, score
from libra_gym.quantizer import Quantizer

# Tests run side by side: threads that wait for each other's cores, here or in a subprocess, cost more than they give.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# The same examples each time, so that tests fail only for what has changed; `--hypothesis-profile=default` searches on.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

SHARED = Path(__file__).resolve().parents[2] / "shared"


def make_bank(images: int = 6, rows: int = 3, cols: int = 4, channels: int = 16, seed: int = 0) -> FeatureBank:
    """A bank whose features tell the counts (noisily), with a train, a validation and a test image at least."""
    rng = np.random.default_rng(seed)
    patches = images * rows * cols
    counts = np.where(rng.random(patches) < 0.3, 0.0, rng.lognormal(0.3, 1.0, patches)).astype(np.float32)
    features = rng.normal(size=(patches, channels)).astype(np.float32)
    features[:, 0] = np.log1p(counts)
    splits = ["train"] * (images - 2) + ["validation", "test"]
    places = tuple(
        BankImage(
            f"image-{i}",
            splits[i],
            rows,
            cols,
            (rows * 32, cols * 32),
            float(counts[i * rows * cols :][: rows * cols].sum()),
        )
        for i in range(images)
    )
    return FeatureBank("small", torch.from_numpy(features), torch.from_numpy(counts), places)


@pytest.fixture
def small_bank() -> FeatureBank:
    return make_bank()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The real data and weights beside the checkout; tests that need them skip where they are missing."""
    if not (SHARED / "weights").is_dir():
        pytest.skip("the real data and weights are not at hand")
    return SHARED


@pytest.fixture(scope="session")
def bf16() -> None:
    """Skip where the CPU cannot compute in bf16; some die of it, so it is tried in another process."""
    trial = (
        "import torch; x = torch.ones(1, 64, 32, 32, requires_grad=True)\n"
        "with torch.autocast('cpu', torch.bfloat16):\n"
        "    y = torch.nn.Linear(64, 64)(torch.nn.Conv2d(64, 64, 3)(x).mean((2, 3)))\n"
        "y.float().sum().backward()"
    )
    if subprocess.run([sys.executable, "-c", trial], capture_output=True, check=False).returncode:
        pytest.skip("this CPU does not compute in bf16")


def score_of(people, counts) -> Score:
    """Of photos of one patch each, with so many people, counted as so many."""
    images = tuple(BankImage(f"photo-{i}", "test", 1, 1, (32, 32), float(n)) for i, n in enumerate(people))
    bank = FeatureBank("photos", torch.zeros(len(people), 2), torch.tensor(people, dtype=torch.float32), images)
    return score(np.asarray(counts, float), bank)


def telling_bank(sizes=((70, 100), (32, 33), (200, 65), (1, 1)), seed=0):
    """A bank of photos of any size whose first feature is the true interval and whose second is the true count."""
    rng = np.random.default_rng(seed)
    points = tuple((rng.random((rng.integers(0, 60), 2)) * size[::-1]).astype(np.float32) for size in sizes)
    maps = [patch_counts(dots, size) for dots, size in zip(points, sizes)]
    counts = torch.from_numpy(np.concatenate([m.ravel() for m in maps]))
    quantizer = Quantizer.fit_log(counts.numpy(), readout="mean")
    features = torch.stack([quantizer.quantize(counts).float(), counts], dim=1)
    images = tuple(
        BankImage(f"photo-{i}", "test", *maps[i].shape, size, float(len(points[i]))) for i, size in enumerate(sizes)
    )
    return FeatureBank("telling", features, counts, images, quantizer, points)


def hand_made_bank():
    """Two photos on which every figure can be worked out on paper; one interval per person."""
    images = (BankImage("square", "test", 2, 2, (64, 64), 3.0), BankImage("strip", "test", 1, 2, (32, 48), 5.0))
    counts = torch.tensor([1.0, 0.0, 2.0, 0.0, 4.0, 0.0])
    points = (
        np.array([[1, 1], [1, 63], [31, 33]], dtype=np.float32),  # one top left, two bottom left
        np.array([[1, 1], [1, 31], [30, 1], [30, 31], [47, 31]], dtype=np.float32),  # the dots' photo is 48 wide
    )
    return FeatureBank("by hand", torch.zeros(6, 2), counts, images, Quantizer.integer(4), points)
