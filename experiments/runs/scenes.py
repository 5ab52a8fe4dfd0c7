"""Images to look at: a photo that the backbone sees now, or an image of a bank with the photo that it was made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from experiments.runs.pictures import head_dots
from libra_gym.bank import BankImage, FeatureBank
from libra_gym.counts import Kernel, inside
from libra_gym.datasets import open_dataset
from libra_gym.datasets.folder import read_dots
from libra_gym.datasets.views import full, natural_scale, resized
from libra_gym.errors import LibraError
from libra_gym.photos import Pixels, read_photo
from libra_gym.suffixes import PHOTO_SUFFIXES

if TYPE_CHECKING:
    from libra_gym.backbones import Backbone

PhotoOf = Callable[[BankImage], Pixels | None]
"""The pixels of a bank's image, or None where there are none to be had."""


@dataclass(frozen=True)
class Scene:
    """One image: its features in a bank of its own, and its pixels."""

    bank: FeatureBank
    pixels: Pixels
    truth_known: bool = True
    """Otherwise the bank's counts mean nothing."""
    scale: float = 1.0
    """How many times larger than the photo the pixels are."""


def photo_scene(
    path: Path, dots: Path | None, backbone: Backbone, kernel: Kernel, scale: float = 1.0, dataset: str = ""
) -> Scene:
    """A photo as the backbone sees it, with the counts of its dots where a CSV or JSON file of them is given.

    `scale` makes it larger first, as the photos that a model learnt from were, and `dataset`, where those were from,
    may limit its size.
    """
    from libra_gym.tiling import whole_features

    points = None if dots is None else _read_points(dots)
    photo = read_photo(path)
    size = (photo.shape[0], photo.shape[1])
    scale *= natural_scale(dataset, size)
    seen = full(size, scale=scale)
    pixels = seen.apply_image(photo)
    people = seen.patch_counts(np.zeros((0, 2)) if points is None else points, size, kernel)
    rows, cols = people.shape
    heads = 0.0 if points is None else float(inside(points, size).sum())
    bank = FeatureBank(
        path.name,
        whole_features(backbone, pixels).flatten(1).mT.contiguous(),
        torch.from_numpy(people.ravel()),
        (BankImage(path.stem, "photo", rows, cols, seen.size, heads),),
        points=None if points is None else (seen.apply_points(points, size),),
    )
    return Scene(bank, pixels, truth_known=points is not None, scale=scale)


def bank_scene(bank: FeatureBank, index: int, photo_of: PhotoOf) -> Scene:
    """An image of a bank, on its photo where there is one, else its head dots on plain ground."""
    image = bank.select([index])
    pixels = photo_of(image.images[0])
    scale = bank.meta.get("scale", 1.0) * bank.meta.get("shrunk", {}).get(image.images[0].photo, 1.0)
    return Scene(image, head_dots(image) if pixels is None else pixels, scale=float(scale))


def find_image(bank: FeatureBank, name: str) -> int:
    """The number of the image of this name; `IMG_10` also finds `train/IMG_10.jpg`, unless several are called so."""
    names = [image.name for image in bank.images]
    found = [i for i, known in enumerate(names) if known == name]
    found = found or [i for i, known in enumerate(names) if known.endswith(f"/{name}")]
    found = found or [i for i, known in enumerate(names) if f"/{_bare(known)}".endswith(f"/{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise LibraError(f"Bank {bank.name!r} has several images {name!r}: {', '.join(names[i] for i in found)}.")
    some = ", ".join(names[:3])
    raise LibraError(f"Bank {bank.name!r} has no image {name!r}; its {len(names)} images are called like {some}.")


def _bare(name: str) -> str:
    """A photo's name without the ending of its file."""
    return Path(name).with_suffix("").as_posix() if Path(name).suffix.lower() in PHOTO_SUFFIXES else name


def photo_source(bank: FeatureBank, dataset: str | None, root: Path | None) -> PhotoOf:
    """Where the photos of a bank's images are found: in a data set, or nowhere if neither name nor root is given."""
    if dataset is None and root is None:
        return lambda image: None
    name = dataset or bank.meta.get("dataset")
    if name is None:
        raise LibraError(f"Bank {bank.name!r} does not say which data set it was made from; give --dataset as well.")
    opened = open_dataset(name, root)
    photos = {photo.name: photo for photo in opened.photos("+".join(opened.present()))}

    def find(image: BankImage) -> Pixels | None:
        if image.name != image.photo:  # a crop or mirror, and a bank does not say of which part
            return None
        if image.name not in photos:
            raise LibraError(
                f"The data set {name!r} has no photo {image.name!r}, which bank {bank.name!r} has; give the data set "
                "that the bank was made from."
            )
        return resized(photos[image.name].image(), image.size)  # as the backbone saw it

    return find


def _read_points(path: Path) -> npt.NDArray[np.float32]:
    if path.suffix not in (".csv", ".json"):
        raise LibraError(f"The dots in {str(path)!r} should be a .csv or .json file (docs/datasets.md).")
    return read_dots(path)
