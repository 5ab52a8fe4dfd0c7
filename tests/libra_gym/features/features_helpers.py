"""Small photos and a cache of their features, for the tests of the cache."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import nn

from libra_gym.backbones import Backbone
from libra_gym.datasets import open_dataset
from libra_gym.features import Manifest, build_features, storage

SIZES = [(64, 96), (70, 65), (64, 96), (31, 200), (33, 33), (64, 96), (70, 65)]


def tiny_backbone(seed: int = 0, scale: float = 1.0) -> Backbone:
    """One convolution with stride 32: as good as VGG16 to a cache, and a thousand times faster."""
    conv = nn.Conv2d(3, 5, 32, 32)
    with torch.no_grad():
        for parameter in conv.parameters():
            numbers = torch.rand(parameter.shape, generator=torch.Generator().manual_seed(seed))
            parameter.copy_(scale * numbers / 32)
    return Backbone("tiny", {"features": nn.Sequential(conv)})


def write_photo(folder: Path, name: str, size: tuple[int, int], people: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(folder / f"{name}.png"), rng.integers(0, 256, (*size, 3), np.uint8))
    dots = rng.uniform(-1, [size[1], size[0]], (people, 2))
    (folder / f"{name}.csv").write_text("".join(f"{x:.2f},{y:.2f}\n" for x, y in dots))


def make(photos: Path, out: Path, backbone: Backbone | None = None, **options: Any) -> Manifest:
    options = {"workers": 0, **options}
    split = options.pop("split", "train+validation")
    return build_features(open_dataset("folder", photos), split, backbone or tiny_backbone(), out, **options)


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name != storage.LOCK}
