"""Makes the bank that ships inside the package: synthetic scenes seen by the paper's frozen VGG16.

python -m experiments.make_demo_bank --weights vgg16.safetensors --out libra_gym/assets/demo.safetensors
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from libra_gym.backbones import Backbone, load_backbone, preprocess
from libra_gym.bank import BankImage, FeatureBank
from libra_gym.counts import DEFAULT_KERNEL, patch_counts
from libra_gym.datasets.synthetic import SEEDS, SIZE, Scene, draw_scene, scene_name
from libra_gym.quantizer import Quantizer


@torch.inference_mode()
def scene_features(backbone: Backbone, scene: Scene) -> Tensor:
    """The features of a scene's patches, row-major: `(patches, channels)`."""
    return backbone(preprocess(scene.image)[None])[0].flatten(1).T.contiguous()


def make_bank(backbone: Backbone, seeds: Mapping[str, Iterable[int]] = SEEDS) -> FeatureBank:
    """Draw the scenes of each split's seeds and look at them; intervals are fitted to the training scenes alone."""
    images, features, counts, points = [], [], [], []
    for split, numbers in seeds.items():
        for seed in numbers:
            scene = draw_scene(seed)
            people = patch_counts(scene.points, SIZE)
            rows, cols = people.shape
            images.append(BankImage(scene_name(seed), split, rows, cols, SIZE, float(len(scene.points))))
            features.append(scene_features(backbone, scene))
            counts.append(people.ravel())
            points.append(scene.points)
    training = [count for count, image in zip(counts, images, strict=True) if image.split == "train"]
    return FeatureBank(
        name="demo",
        features=torch.cat(features),
        counts=torch.from_numpy(np.concatenate(counts)),
        images=tuple(images),
        quantizer=Quantizer.fit_log(np.concatenate(training), readout="mean"),
        points=tuple(points),
        meta={"backbone": backbone.name, "weights": backbone.weights_hash, "kernel": DEFAULT_KERNEL},
    )


def main() -> None:
    """Make the bank and write it with one byte per feature."""
    parser = argparse.ArgumentParser(description="Make the demo bank from synthetic scenes and VGG16.")
    parser.add_argument("--weights", type=Path, required=True, help="ImageNet weights of VGG16 (.safetensors or .pth)")
    parser.add_argument("--out", type=Path, required=True, help="the bank to write (.safetensors)")
    options = parser.parse_args()
    bank = make_bank(load_backbone("vgg16", weights=options.weights))
    bank.save(options.out, compress=True)
    size = options.out.stat().st_size / 1e6
    print(
        f"{options.out}: {len(bank.images)} scenes, {len(bank)} patches, {bank.num_intervals} intervals, {size:.2f} MB"
    )


if __name__ == "__main__":
    main()
