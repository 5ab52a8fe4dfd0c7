"""The memory that counting a very large photo takes."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn

from experiments.benchmarks import BenchOptions, peak_mb
from libra_gym.backbones import Backbone, load_backbone
from libra_gym.counter import Counter
from libra_gym.network import NetworkSettings, ScaleNetwork
from libra_gym.photos import read_photo
from libra_gym.quantizer import Quantizer
from libra_gym.task import WeighingTask
from libra_gym.tiling import TILE_PIXELS
from libra_gym.weigher import Weigher

SIDES = 8192, 12288
"""Height and width: 100.7 million pixels."""


def run(options: BenchOptions) -> dict[str, float]:
    """Figures of one photo of 100 megapixels, from the file to the number, in a process of its own.

    - `count_100mp_peak_gb`: its peak memory. With `options.weights` VGG16 sees the whole photo, which takes minutes.
      Without, a small network with about VGG16's reach does, and then VGG16 a tile of it, beside the whole photo.
    - `count_100mp_seconds`: the time that it took.
    """
    with tempfile.TemporaryDirectory() as folder:
        photo = Path(folder) / "large.jpg"
        _draw(photo)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peak, seconds = pool.apply(_count_and_measure, (photo, options.weights))
    return {"count_100mp_peak_gb": peak / 1e3, "count_100mp_seconds": seconds}


def _draw(path: Path) -> None:
    """Blurred noise."""
    small = np.random.default_rng(0).integers(0, 256, (SIDES[0] // 16, SIDES[1] // 16, 3), np.uint8)
    cv2.imwrite(str(path), cv2.resize(small, SIDES[::-1], interpolation=cv2.INTER_LINEAR))


def _count_and_measure(photo: Path, weights: Path | None) -> tuple[float, float]:
    start = time.perf_counter()
    if weights is not None:
        _counter(load_backbone("vgg16", weights)).count(photo)
    else:
        _counter(_small_backbone(), hidden=(64,)).count(photo)
        pixels = read_photo(photo)
        _counter(load_backbone("vgg16", "random")).count(pixels[:1024, : TILE_PIXELS // 1024])  # one tile, a full one
    return peak_mb(), time.perf_counter() - start


def _counter(backbone: Backbone, hidden: tuple[int, ...] = (1024, 1024)) -> Counter:
    """A counter with a scale that has learnt nothing."""
    torch.manual_seed(0)
    quantizer = Quantizer.log(60)
    network = ScaleNetwork(NetworkSettings(channels=backbone.channels, hidden=hidden))
    return Counter(backbone, Weigher(network, WeighingTask.intervals(quantizer.num_intervals), quantizer))


def _small_backbone() -> Backbone:
    layers: list[nn.Module] = [nn.MaxPool2d(8)]
    for before in (3, *[8] * 10):
        layers += [nn.Conv2d(before, 8, 3, padding=1), nn.ReLU(inplace=True)]
    return Backbone("small", {"features": nn.Sequential(*layers, nn.MaxPool2d(4))})
