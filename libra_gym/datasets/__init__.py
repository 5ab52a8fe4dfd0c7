"""Photos with head dots: the data sets of the paper's experiments, a user's own folder, and made-up scenes.

from libra_gym.datasets import open_dataset

for photo in open_dataset("shanghaitech_a", "data/shanghaitech").photos("train"):
    image, points = photo.image(), photo.points()
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final

from libra_gym.datasets.base import CrowdDataset, Photo, readable
from libra_gym.datasets.images import read_image
from libra_gym.errors import LibraError

__all__ = ["DATASETS", "CrowdDataset", "Photo", "open_dataset", "read_image"]

DATASETS: Final[dict[str, str]] = {
    "shanghaitech_a": "libra_gym.datasets.shanghaitech:ShanghaiTechA",
    "shanghaitech_b": "libra_gym.datasets.shanghaitech:ShanghaiTechB",
    "ucf_cc_50": "libra_gym.datasets.ucf_cc_50:UCFCC50",
    "ucf_qnrf": "libra_gym.datasets.ucf_qnrf:UCFQNRF",
    "jhu": "libra_gym.datasets.jhu:JHUCrowd",
    "folder": "libra_gym.datasets.folder:Folder",
    "synthetic": "libra_gym.datasets.synthetic:Synthetic",
}
"""Names and where their classes live; a class is imported when its data set is opened."""


def open_dataset(name: str, root: Path | str | None = None) -> CrowdDataset:
    """The data set `name` in the directory `root`; only `synthetic` needs no directory."""
    if name not in DATASETS:
        raise LibraError(f"There is no data set {name!r}; the data sets are {', '.join(DATASETS)}.")
    if root is None and name != "synthetic":
        raise LibraError(f"The data set {name!r} needs the directory its photos are in.")
    if root is not None and name != "synthetic" and not Path(root).is_dir():
        raise LibraError(f"The directory {root} of the data set {name!r} does not exist.")
    with readable(root):
        dataset: CrowdDataset = dataset_class(name)(None if root is None else Path(root))
    return dataset


def dataset_class(name: str) -> type[Any]:
    """The class of one of `DATASETS`."""
    module, _, cls = DATASETS[name].partition(":")
    found: type[Any] = getattr(import_module(module), cls)
    return found
