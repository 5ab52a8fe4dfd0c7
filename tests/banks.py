"""Small banks for all tests."""

import numpy as np
import torch

from libra_gym.bank import BankImage, FeatureBank
from libra_gym.counts import patch_counts
from libra_gym.metrics import Score, score
from libra_gym.quantizer import Quantizer


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
