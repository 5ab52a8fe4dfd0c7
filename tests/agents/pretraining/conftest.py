"""A small crowd to pre-train on."""

import cv2
import numpy as np
import pytest

from agents.pretraining.looks import Scene
from libra_gym.counts import KERNELS
from libra_gym.datasets import open_dataset


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """Photos with dark heads on a light ground, of sides that are no multiples of 32."""
    root = tmp_path_factory.mktemp("crowd")
    rng = np.random.default_rng(0)
    for number in range(12):
        height, width = (int(side) for side in rng.integers(70, 150, 2))
        image = np.full((height, width, 3), 220, np.uint8)
        dots = rng.uniform(0, [width, height], (int(rng.integers(0, 60)), 2))
        for x, y in dots:
            cv2.circle(image, (int(x), int(y)), 3, (30, 30, 60), -1)
        cv2.imwrite(str(root / f"{number}.png"), image)
        np.savetxt(root / f"{number}.csv", dots, delimiter=",", fmt="%.2f")
    return open_dataset("folder", root)


@pytest.fixture
def scene(crowd) -> Scene:
    return Scene.read_all(crowd, "train", KERNELS["capped"])[0]
