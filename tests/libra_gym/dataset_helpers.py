"""Small data sets in the spellings of their releases."""

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import ArrayLike
from scipy.io import savemat

from libra_gym.datasets import CrowdDataset

DOTS = [(3.5, 4.25), (10.0, 7.0)]


def write_photo(path: Path, *, grey: bool = False, height: int = 20, width: int = 30) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (height, width) if grey else (height, width, 3)
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8))


def write_mat(path: Path, dots: ArrayLike, *, shanghaitech: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not shanghaitech:
        savemat(path, {"annPoints": np.asarray(dots, np.float64)})
        return
    info, cell = np.empty((1, 1), object), np.empty((1, 1), [("location", object), ("number", object)])
    cell[0, 0] = (np.asarray(dots, np.float64), len(np.asarray(dots)))
    info[0, 0] = cell
    savemat(path, {"image_info": info})


def shanghaitech(
    part: Path, numbers: range | list[int], folder: str = "train_data", truth: str = "ground-truth"
) -> None:
    for k in numbers:
        write_photo(part / folder / "images" / f"IMG_{k}.jpg")
        write_mat(part / folder / truth / f"GT_IMG_{k}.mat", DOTS, shanghaitech=True)


def names(dataset: CrowdDataset, split: str) -> list[str]:
    return [photo.name for photo in dataset.photos(split)]
