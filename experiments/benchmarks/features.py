"""How little the feature cache adds to the bare backbone, in time and in memory."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
import torch

from experiments.benchmarks import BenchOptions, peak_mb
from libra_gym.backbones import load_backbone, preprocess
from libra_gym.datasets import CrowdDataset, open_dataset
from libra_gym.features import build_features
from libra_gym.features.build import PHOTOS_PER_SHARD


def run(options: BenchOptions) -> dict[str, float]:
    """Figures on made-up photos; VGG16 with the given weights, or with random ones.

    - `features_overhead`: time of the whole pipeline (reading, decoding, normalising, backbone, counts, writing) over
      that of the backbone alone on the same tensors; the best of two rounds each, since other work only adds time.
    - `features_peak_mb_growth`: how much the peak memory grows when the data set is four times as large.
    """
    with tempfile.TemporaryDirectory() as folder:
        small, large = (_peak_mb(Path(folder), shards) for shards in (2, 8))  # the allocator settles in the second
        overhead = _overhead(Path(folder), options.weights)
    return {"features_overhead": overhead, "features_peak_mb_growth": large - small}


def _overhead(folder: Path, weights: Path | None, rounds: int = 2) -> float:
    """Photos of about the size of ShanghaiTech A's; the best of a few rounds on each side."""
    dataset = _photos(folder / "few", number=16, size=(576, 768))
    backbone = load_backbone("vgg16", weights or "random")
    tensors = [preprocess(photo.image())[None] for photo in dataset.photos("all")]
    pipeline, bare = [], []
    with torch.inference_mode():
        backbone(tensors[0])
        for number in range(rounds):
            start = time.perf_counter()
            build_features(dataset, "all", backbone, folder / f"cache-{number}")
            middle = time.perf_counter()
            for tensor in tensors:
                backbone(tensor)
            pipeline.append(middle - start)
            bare.append(time.perf_counter() - middle)
    return min(pipeline) / min(bare)


def _peak_mb(folder: Path, shards: int) -> float:
    """The peak memory of a process of its own that makes a cache of so many shards."""
    _photos(folder / f"photos-{shards}", number=shards * PHOTOS_PER_SHARD, size=(320, 320))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_build_and_measure, (folder / f"photos-{shards}", folder / f"peak-{shards}"))


def _build_and_measure(root: Path, out: Path) -> float:
    backbone = load_backbone("mobilenet_v3_large", "random")
    build_features(open_dataset("folder", root), "all", backbone, out, workers=0)  # a pool's process has no children
    return peak_mb()


def _photos(root: Path, number: int, size: tuple[int, int]) -> CrowdDataset:
    """A folder of noise with dots."""
    root.mkdir()
    rng = np.random.default_rng(0)
    for index in range(number):
        cv2.imwrite(str(root / f"{index}.jpg"), rng.integers(0, 256, (*size, 3), np.uint8))
        dots = rng.uniform(0, [size[1], size[0]], (300, 2))
        np.savetxt(root / f"{index}.csv", dots, delimiter=",", fmt="%.2f")
    return open_dataset("folder", root)
