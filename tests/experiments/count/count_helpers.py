"""What the tests of `libra count` and `libra release` share."""

import cv2
import numpy as np
from typer.testing import CliRunner

from experiments.cli import app

BACKBONE = "resnet18"


def picture(seed, height=96, width=128):
    small = np.random.default_rng(seed).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def libra(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])
