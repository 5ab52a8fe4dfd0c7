"""Speed of patch counts against the usual way: filter an image of each dot, add up a density map, sum its patches."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from experiments.benchmarks import BenchOptions
from libra_gym.counts import KERNELS, PATCH, Points, Size, inside, patch_counts, sigmas
from libra_gym.datasets import open_dataset

_KERNEL = KERNELS["paper"]  # what gaussian_filter does: a Gaussian cut at 4σ
_SAMPLE = 3
_REPEATS = 20


def run(options: BenchOptions) -> dict[str, float]:
    """Measure on ShanghaiTech A train in `options.root`, or on made-up dots of like number without it.

    - ``counts_vs_scipy``: how many times faster an image's patch counts are, the median over a seeded sample of images.
    - ``counts_a_train_s``: seconds of patch counts for all of A train (300 photos); only with `root`.

    Both sides start from the dots in memory and end with patch counts, including the search for neighbours. Reading of
    photos and labels is not in it. Time is that of the process on all its cores, so that threads earn nothing.
    """
    root = options.root
    crowds = _real(root) if root else _made_up()
    sample = np.random.default_rng(0).choice(len(crowds), _SAMPLE, replace=False)
    figures = {"counts_vs_scipy": float(np.median([_ratio(*crowds[index]) for index in sample]))}
    if root:
        figures["counts_a_train_s"] = _seconds(lambda: [patch_counts(*crowd, _KERNEL) for crowd in crowds])
    return figures


def _real(root: Path) -> list[tuple[Points, Size]]:
    photos = open_dataset("shanghaitech_a", root).photos("train+validation+leaked")
    crowds = []
    for photo in photos:
        height, width, _ = photo.image().shape
        crowds.append((photo.points(), (height, width)))
    return crowds


def _made_up() -> list[tuple[Points, Size]]:
    rng = np.random.default_rng(0)
    size = 589, 868  # the mean photo of part A
    return [(rng.uniform(0, size[::-1], (number, 2)).astype(np.float32), size) for number in (150, 400, 900)]


def _ratio(points: Points, size: Size) -> float:
    closed = _seconds(lambda: [patch_counts(points, size, _KERNEL) for _ in range(_REPEATS)]) / _REPEATS
    return _seconds(lambda: filtered_counts(points, size)) / closed


def filtered_counts(points: Points, size: Size) -> NDArray[np.float64]:
    """Patch counts the usual way: dots rounded to pixels, one Gaussian filter per dot over the whole image."""
    height, width = size
    points = points[inside(points, size)]
    density = np.zeros(size)
    for (x, y), sigma in zip(points, sigmas(points, _KERNEL)):
        dot = np.zeros(size)
        dot[int(y), int(x)] = 1.0
        density += gaussian_filter(dot, sigma, mode="constant")
    density = np.pad(density, ((0, -height % PATCH), (0, -width % PATCH)))
    rows, columns = density.shape[0] // PATCH, density.shape[1] // PATCH
    return np.asarray(density.reshape(rows, PATCH, columns, PATCH).sum(axis=(1, 3)))


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start
