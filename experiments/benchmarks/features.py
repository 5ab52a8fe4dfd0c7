"""How little the feature cache adds to the bare backbone, in time and in memory."""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
import torch

from libra_gym.backbones import load_backbone, preprocess
from libra_gym.datasets import CrowdDataset, open_dataset
from libra_gym.features import build_features
from libra_gym.features.build import PHOTOS_PER_SHARD


def run(weights: Path | None) -> dict[str, float]:
    """Figures on made-up photos; VGG16 with these weights, or with random ones.

    `features_overhead` is the time of the whole pipeline (reading, decoding, normalising, backbone, counts, writing)
    over that of the backbone alone on the same tensors. `features_peak_mb_growth` is how much the peak memory grows
    when a data set is four times as large.
    """
    with tempfile.TemporaryDirectory() as folder:
        return {**_overhead(Path(folder), weights), **_memory(Path(folder))}


def _overhead(folder: Path, weights: Path | None, rounds: int = 3) -> dict[str, float]:
    dataset = _photos(folder / "few", number=6, size=(576, 768))
    backbone = load_backbone("vgg16", weights or "random")
    tensors = [preprocess(photo.image())[None] for photo in dataset.photos("all")]
    ratios = []
    with torch.inference_mode():
        backbone(tensors[0])
        for number in range(rounds):
            start = time.perf_counter()
            build_features(dataset, "all", backbone, folder / f"cache-{number}")
            middle = time.perf_counter()
            for tensor in tensors:
                backbone(tensor)
            ratios.append((middle - start) / (time.perf_counter() - middle))
    return {"features_overhead": statistics.median(ratios)}


def _memory(folder: Path) -> dict[str, float]:
    backbone = load_backbone("mobilenet_v3_large", "random")
    peaks = []
    for shards in (1, 4):
        dataset = _photos(folder / f"photos-{shards}", number=shards * PHOTOS_PER_SHARD, size=(480, 640))
        build_features(dataset, "all", backbone, folder / f"peak-{shards}")
        peaks.append(_peak_mb())
    return {"features_peak_mb": peaks[1], "features_peak_mb_growth": peaks[1] - peaks[0]}


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)  # bytes on macOS, kilobytes on Linux


def _photos(root: Path, number: int, size: tuple[int, int]) -> CrowdDataset:
    """A folder of noise with dots."""
    root.mkdir()
    rng = np.random.default_rng(0)
    for index in range(number):
        cv2.imwrite(str(root / f"{index}.jpg"), rng.integers(0, 256, (*size, 3), np.uint8))
        dots = rng.uniform(0, [size[1], size[0]], (300, 2))
        np.savetxt(root / f"{index}.csv", dots, delimiter=",", fmt="%.2f")
    return open_dataset("folder", root)
