"""What the frozen-stem cache saves: seconds per epoch with and without it, the same layers learning."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import cv2
import numpy as np

from agents.pretraining import Pretrainer, pretrain_settings
from agents.pretraining.stem import Where
from experiments.benchmarks import BenchOptions
from libra_gym.backbones import load_backbone
from libra_gym.datasets import CrowdDataset, Photo, open_dataset

PHOTOS = 8
"""Training photos of a made-up data set; with a root, those of ShanghaiTech A's training set that come first."""


def run(options: BenchOptions) -> dict[str, float]:
    """BCNet from conv4_1 on, crops of 384 × 384; an epoch of a few photos, scaled to ShanghaiTech A's 269.

    - `pretrain_cached_epoch_s`: seconds per epoch when the frozen layers' maps are in the cache.
    - `pretrain_uncached_epoch_s`: seconds per epoch when each crop is read and goes through the frozen layers.
    - `pretrain_cache_speedup`: how many times faster the first is.
    - `pretrain_cache_fill_s`: what filling the cache costs once.
    """
    with tempfile.TemporaryDirectory() as folder:
        dataset = open_dataset("shanghaitech_a", options.root) if options.root else _crowd(Path(folder) / "photos")
        seconds: dict[str, float] = {}
        for where in ("ram", "none"):
            seconds |= _epochs(where, dataset, options.weights)  # type: ignore[arg-type]
    seconds["pretrain_cache_speedup"] = seconds["pretrain_uncached_epoch_s"] / seconds["pretrain_cached_epoch_s"]
    return seconds


def _epochs(where: Where, dataset: CrowdDataset, weights: Path | None) -> dict[str, float]:
    """The time of the first epoch, which fills the cache, and the best of two more."""
    settings = pretrain_settings("bcnet", changes={"views": 1, "epochs": 3})
    trainer = Pretrainer(settings, load_backbone("vgg16", weights or "random"), _Few(dataset), where=where)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        trainer.learn_epoch()
        times.append((time.perf_counter() - start) * 269 / PHOTOS)
    if where == "none":
        return {"pretrain_uncached_epoch_s": min(times)}
    return {"pretrain_cached_epoch_s": min(times[1:]), "pretrain_cache_fill_s": times[0] - min(times[1:])}


class _Few(CrowdDataset):
    """The first training photos of a data set, and one more, since a training wants one to be judged by."""

    def __init__(self, dataset: CrowdDataset) -> None:
        self.name, self.splits = dataset.name, ("train", "validation")
        self._few = dataset.photos("train")[: PHOTOS + 1]

    def _photos(self, split: str) -> list[Photo]:
        return self._few[:PHOTOS] if split == "train" else self._few[PHOTOS:]


def _crowd(root: Path) -> CrowdDataset:
    """A folder of noise of ShanghaiTech A's usual size, with dots."""
    root.mkdir()
    rng = np.random.default_rng(0)
    for index in range(2 * PHOTOS):  # some are held out by the folder itself
        cv2.imwrite(str(root / f"{index}.jpg"), rng.integers(0, 256, (704, 1024, 3), np.uint8))
        np.savetxt(root / f"{index}.csv", rng.uniform(0, [1024, 704], (300, 2)), delimiter=",", fmt="%.2f")
    return open_dataset("folder", root)
