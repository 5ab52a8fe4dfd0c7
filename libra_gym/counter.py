"""Counting people in photos: backbone, scale and quantizer together in one file, and photo in, number out.

`count("photo.jpg").count` is the short way; a `Counter` is the same with a model of one's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from libra_gym.backbones import PRETRAINED, STRIDE, Backbone, load_backbone
from libra_gym.counts import Size
from libra_gym.datasets.views import natural_scale, resized, scaled_size
from libra_gym.errors import LibraError
from libra_gym.features.build import PREPROCESSING
from libra_gym.features.storage import write_whole
from libra_gym.kind import Hint, Kind
from libra_gym.models import find_model
from libra_gym.photos import Pixels, Region, crop, limit_side, read_photo
from libra_gym.tiling import UNTILED_SIDE, tiled_features
from libra_gym.uncertainty import Uncertainty
from libra_gym.weigher import FORMAT as WEIGHER_FORMAT
from libra_gym.weigher import Weigher

FORMAT = "libra_gym.counter"
Precision = Literal["float16", "float32"]

# Before the names of tensors; the backbone's are torchvision's own.
_SCALE = "weigher."
_HEAD = "head."


@dataclass(frozen=True, eq=False)
class Counted:
    """The people in a photo."""

    count: float
    low: float | None
    """The interval `low` … `high` holds the true number in `coverage` of the photos that are like those that the model
    was validated on; None where the model knows no interval, for a region, and for a photo with a `hint`."""
    high: float | None
    coverage: float | None
    patch_map: npt.NDArray[np.float32]
    """People in each 32×32 patch of what was counted, `(rows, cols)`; see `Counter.look`."""
    seconds: float
    hint: Hint | None = None
    """In what the photo is unlike those that the model learnt from, and what to do about it; it then has no interval.
    None also where that is unknown."""


class Counter:
    """Counts people in photos; keeps the model loaded. Computes in single precision on the CPU.

    Args:
        backbone: looks at the photo.
        weigher: weighs its patches; it must have been trained on this backbone's features.
        uncertainty: what a count's interval is; None: unknown.
        card: what a user should know of the model (data, recipe, validation figures, limits, licence); JSON types.
    """

    def __init__(
        self,
        backbone: Backbone,
        weigher: Weigher,
        uncertainty: Uncertainty | None = None,
        card: Mapping[str, Any] | None = None,
    ) -> None:
        needed = weigher.network.settings.channels
        if backbone.channels != needed:
            raise LibraError(
                f"The backbone {backbone.name!r} gives {backbone.channels} features a patch, but the model was trained "
                f"on {needed}."
            )
        self.backbone = backbone
        self.weigher = weigher
        self.uncertainty = uncertainty
        self.card = dict(card or {})

    def count(
        self,
        photo: str | Path | Pixels,
        *,
        region: Region | None = None,
        max_side: int | None = None,
        whole: bool = True,
    ) -> Counted:
        """Count the people in a photo.

        Args:
            photo: a file, or RGB pixels `uint8 (height, width, 3)`.
            region: left, top, width and height of the part to count, in pixels; the rest is cut off first.
            max_side: make what is counted smaller if its longer side has more pixels, before it gets the model's own
                scale. By default there is no limit.
            whole: False for a part of a photo or a frame of a video. Like a region it has no interval: that is of whole
                photos like those that the model learnt from.
        """
        start = time.perf_counter()
        pixels = view(photo, region, max_side)
        people = self._weigh(self.look(pixels))
        total = float(people.sum(dtype=np.float64))
        size = self._natural_size(pixels)
        whole = whole and region is None
        hint = self.kind.unlike(size, total) if whole else self.kind.too_large(size)
        known = self.uncertainty if whole and hint is None else None
        low, high = (None, None) if known is None else known.interval(total)
        coverage = None if known is None else known.coverage
        return Counted(total, low, high, coverage, people, time.perf_counter() - start, hint)

    @property
    def scale(self) -> float:
        """How many times larger than it is a photo is looked at: as the photos that the model learnt from were."""
        return float(self.weigher.about.get("scale", 1.0))

    @property
    def kind(self) -> Kind:
        """How large the photos that the model learnt from were, before they got its scale, and how full."""
        return Kind.read(self.weigher.about)

    def scale_of(self, pixels: Pixels) -> float:
        """The same for one photo: where the photos that the model learnt from were limited in size, so is this one."""
        return self.scale * natural_scale(self.weigher.about.get("dataset", ""), (pixels.shape[0], pixels.shape[1]))

    def _natural_size(self, pixels: Pixels) -> Size:
        """A photo's height and width as far as those that the model learnt from were not limited."""
        size = (pixels.shape[0], pixels.shape[1])
        return scaled_size(size, natural_scale(self.weigher.about.get("dataset", ""), size))

    def look(self, pixels: Pixels) -> Pixels:
        """The photo in the size in which it is counted."""
        return resized(pixels, scaled_size((pixels.shape[0], pixels.shape[1]), self.scale_of(pixels)))

    def _weigh(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        """People in each patch `(rows, cols)`."""
        advice = f"make it smaller, for example with max_side={int(UNTILED_SIDE / self.scale)}"
        people = np.zeros([-(-side // STRIDE) for side in pixels.shape[:2]], np.float32)
        for tile, features in tiled_features(self.backbone, pixels, advice=advice):
            value, _ = self.weigher.weigh_features(features.flatten(1).mT.contiguous())
            people[tile.rows, tile.cols] = self._people(value).reshape(features.shape[1:])
        return people

    def _people(self, value: Tensor) -> npt.NDArray[np.float32]:
        quantizer = self.weigher.quantizer
        people = value * self.weigher.task.tick if quantizer is None else quantizer.dequantize(value)
        return np.asarray(people.cpu().numpy(), np.float32)

    # ------------------------------------------------------------------------------------------------------- one file

    def save(self, path: str | Path, dtype: Precision = "float16", *, head: Mapping[str, Tensor] | None = None) -> None:
        """Write everything as one safetensors file.

        With `float16`, matrices and kernels are stored in half precision; biases and statistics stay as they are. The
        tensors of the backbone keep torchvision's names, so that the file also serves as a backbone's weights. `head`
        is the one-step head that the backbone was trained with: counting has no use for it, further pre-training does.
        """
        scale = {_SCALE + name: tensor for name, tensor in self.weigher.network.state_dict().items()}
        one_step = {_HEAD + name: tensor for name, tensor in (head or {}).items()}
        parts = self.backbone.state_dict() | scale | one_step
        tensors = {name: _stored(name, tensor, dtype) for name, tensor in parts.items()}
        header = {
            "backbone": self.backbone.name,
            "preprocessing": PREPROCESSING,
            "weigher": self.weigher.header(),
            "uncertainty": None if self.uncertainty is None else self.uncertainty.to_dict(),
            "card": self.card,
        }
        write_whole(Path(path), save(tensors, {FORMAT: json.dumps(header)}))

    @classmethod
    def load(cls, model: str | Path = "dense") -> Counter:
        """Open a file that `save` wrote, or one of the models that ship with the package by its name."""
        path = find_model(model)
        try:
            with safe_open(str(path), framework="pt") as file:
                found = file.metadata() or {}
                header = json.loads(found.get(FORMAT, "null"))
                names = [name for name in file.keys() if name.startswith(_SCALE)]  # noqa: SIM118 (not a mapping)
                scale = {name.removeprefix(_SCALE): file.get_tensor(name).float() for name in names}
        except (SafetensorError, OSError, json.JSONDecodeError) as error:
            raise LibraError(f"{str(path)!r} is not a readable safetensors file ({error}).") from None
        if header is None and WEIGHER_FORMAT in found:
            raise LibraError(
                f"{str(path)!r} holds a trained scale without its backbone; join them with `libra release RUN "
                "--weights FILE --out MODEL`."
            )
        if header is None and PRETRAINED in found:
            raise LibraError(
                f"{str(path)!r} is a backbone of `libra pretrain`, which counts nothing by itself; make a bank of its "
                "features (`libra features --weights`), train a scale on it (`libra train`), and release that run."
            )
        if header is None:
            raise LibraError(f"{str(path)!r} is a safetensors file, but not a model that counts photos.")
        if header["preprocessing"] != PREPROCESSING:
            raise LibraError(
                f"{str(path)!r} was made for photos that are prepared in another way than this version of libra-gym "
                "does; use the version that made it."
            )
        uncertainty = None if header["uncertainty"] is None else Uncertainty(**header["uncertainty"])
        weigher = Weigher.from_header(header["weigher"], scale)
        return cls(load_backbone(header["backbone"], path), weigher, uncertainty, header["card"])


def view(photo: str | Path | Pixels, region: Region | None = None, max_side: int | None = None) -> Pixels:
    """What of a photo is counted: its pixels, cut to the region, then scaled."""
    pixels = read_photo(photo) if isinstance(photo, str | PathLike) else np.asarray(photo)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or pixels.size == 0:
        raise LibraError(
            f"A photo in memory must be uint8 (height, width, 3), RGB; this one is {pixels.dtype} {pixels.shape}."
        )
    if region is not None:
        pixels = crop(pixels, region)
    # torch wants memory of its own kind, which pixels of other programs may not be
    return np.require(pixels if max_side is None else limit_side(pixels, max_side), requirements=["C", "W"])


def count(
    photo: str | Path | Pixels,
    model: str | Path = "dense",
    *,
    region: Region | None = None,
    max_side: int | None = None,
) -> Counted:
    """Count the people in a photo; see `Counter.count`. The model stays loaded, until its file is written anew."""
    path = find_model(model).resolve()
    about = path.stat()
    return _loaded(path, about.st_mtime_ns, about.st_size).count(photo, region=region, max_side=max_side)


@lru_cache(maxsize=2)
def _loaded(path: Path, _changed: int, _bytes: int) -> Counter:
    return Counter.load(path)


def _stored(name: str, tensor: Tensor, dtype: Precision) -> Tensor:
    if dtype == "float32" or tensor.ndim < 2:
        return tensor.contiguous()
    half = tensor.half().contiguous()
    if not bool(torch.isfinite(half).all()):
        raise LibraError(f"{name!r} has weights that half precision cannot hold; save the model with dtype='float32'.")
    return half
