"""The feature bank: what the scale weighs.

A bank holds, for every patch of a set of images, the frozen backbone's feature vector and the true count, and knows
where in which image each patch lies. It is all that the reinforcement-learning side ever sees of a photo.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from libra_gym.errors import LibraError
from libra_gym.quantizer import Quantizer
from libra_gym.splits import is_training, part


class Rows(Protocol):
    """Feature vectors by number: a tensor, or anything that reads rows on demand like one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Patches and channels."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """How a feature is stored."""
        ...

    def __getitem__(self, index: Tensor | slice) -> Tensor: ...

    def run(self, start: int, stop: int) -> Rows:
        """The rows from `start` to before `stop`, still to be read."""
        ...

    def to(self, device: torch.device | str) -> Tensor:
        """All rows as one tensor on this device."""
        ...


Features: TypeAlias = Tensor | Rows
Division: TypeAlias = Callable[[str, Sequence[str]], list[str] | None]


def _plain(number: Any) -> Any:
    return number.item() if isinstance(number, np.generic) else number


@dataclass(frozen=True)
class BankImage:
    """One image of a bank: a photo, or a view of one."""

    name: str
    split: str
    rows: int
    cols: int
    size: tuple[int, int]
    """Height and width in pixels, before padding."""
    people: float
    """The number of annotated heads in the image: what a counter should answer."""
    source: str | None = None
    """The name of the photo, where it cannot be told from that of the image."""

    def __post_init__(self) -> None:
        # As Python's numbers, not numpy's: a bank's file holds them as JSON.
        numbers = {name: getattr(self, name) for name in ("rows", "cols", "size", "people")}
        for name, value in numbers.items():
            object.__setattr__(self, name, tuple(map(_plain, value)) if name == "size" else _plain(value))

    @property
    def patches(self) -> int:
        """The number of patches."""
        return self.rows * self.cols

    @property
    def photo(self) -> str:
        """The name of the photo that this is, or is a view of."""
        return self.name.partition("#")[0] if self.source is None else self.source


def training_counts(counts: Tensor, images: Sequence[BankImage]) -> np.ndarray:
    """Those of the training images, where there are any: what is made of them shows nothing of the others."""
    training = np.repeat([is_training(image.split) for image in images], [image.patches for image in images])
    numbers = counts.cpu().numpy()
    return numbers[training] if training.any() else numbers


@dataclass(frozen=True, eq=False)
class FeatureBank:
    """Features, counts and places of patches, image after image, row-major within each.

    Args:
        name: what to call the bank in messages and reports.
        features: one row per patch, `(patches, channels)`.
        counts: people per patch, `(patches,)`.
        images: the images in the order of their patches.
        quantizer: counts ⇄ intervals. When absent it is fitted to the training images' counts, or to all where there
            are none (the appendix's binning, bin means).
        points: head dots per image, if they are known.
        meta: how the bank was made; plain JSON types.
        divide: for a bank that can be divided in several ways, as for cross-validation: from a split's name and the
            images' names to the split of each, or None.
        fullest: people in the fullest training patch, which is as much as a scale for real-valued counts can hold. When
            absent it is found as the quantizer is.
    """

    name: str
    features: Features
    counts: Tensor
    images: tuple[BankImage, ...]
    quantizer: Quantizer = None  # type: ignore[assignment]  # filled below
    points: tuple[np.ndarray, ...] | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    divide: Division | None = None
    fullest: float = None  # type: ignore[assignment]  # filled below

    def __post_init__(self) -> None:
        patches = sum(image.patches for image in self.images)
        if patches == 0:
            raise LibraError(f"Bank {self.name!r} has no patches; it needs at least one image with one patch.")
        if len(self.features.shape) != 2 or self.features.shape[0] != patches:
            raise LibraError(
                f"Bank {self.name!r} has features of shape {tuple(self.features.shape)}, but its images have "
                f"{patches} patches."
            )
        if tuple(self.counts.shape) != (patches,):
            raise LibraError(f"Bank {self.name!r} has {tuple(self.counts.shape)} counts for {patches} patches.")
        if not bool(torch.isfinite(self.counts).all()) or bool((self.counts < 0).any()):
            raise LibraError(f"Bank {self.name!r} has a count that is negative or not finite; counts must be ≥ 0.")
        if isinstance(self.features, Tensor):
            self._check_finite(self.features)
        if self.quantizer is None:
            fitted = Quantizer.fit_log(training_counts(self.counts, self.images), readout="mean")
            object.__setattr__(self, "quantizer", fitted)
        if self.fullest is None:
            object.__setattr__(self, "fullest", float(training_counts(self.counts, self.images).max()))

    def _check_finite(self, rows: Tensor) -> None:
        bad = ~torch.isfinite(rows).all(1)
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            raise LibraError(
                f"Bank {self.name!r} has NaN or infinite features (first in patch {first}); extract them again."
            )

    # ---------------------------------------------------------------------------------------------------- sizes

    def __len__(self) -> int:
        return int(self.counts.shape[0])

    def __deepcopy__(self, memo: dict[int, Any]) -> FeatureBank:
        return self  # immutable, and often large

    @property
    def channels(self) -> int:
        """Length of a patch's feature vector."""
        return int(self.features.shape[1])

    @property
    def num_intervals(self) -> int:
        """C, the number of intervals of the quantizer."""
        return self.quantizer.num_intervals

    @property
    def device(self) -> torch.device:
        """Where the counts (and, unless they are read on demand, the features) live."""
        return self.counts.device

    def fingerprint(self, rows: int = 256) -> str:
        """A hash of what is in the bank: its images, all counts, and an even sample of the features."""
        images = [asdict(image) for image in self.images]
        for image in images:
            if image["source"] is None:
                del image["source"]  # so that banks from before there was one have the hash that they had
        digest = hashlib.sha256(json.dumps(images).encode())
        digest.update(self.counts.cpu().float().numpy().tobytes())
        sample = torch.linspace(0, len(self) - 1, min(rows, len(self))).long().to(self.device)
        digest.update(self.gather(sample).cpu().numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def intervals(self) -> Tensor:
        """The true interval of each patch, int64 `(patches,)`."""
        return self.quantizer.quantize(self.counts)

    @cached_property
    def offsets(self) -> Tensor:
        """Image i has the patches `offsets[i]` … `offsets[i+1] − 1`; int64 `(images + 1,)` on the CPU."""
        return torch.tensor([0, *np.cumsum([image.patches for image in self.images])])

    @cached_property
    def image_of(self) -> Tensor:
        """The image of each patch, int64 `(patches,)`."""
        sizes = torch.tensor([image.patches for image in self.images])
        return torch.repeat_interleave(torch.arange(len(self.images)), sizes).to(self.device)

    @cached_property
    def places(self) -> Tensor:
        """Row and column of each patch within its image, int64 `(patches, 2)`."""
        index = torch.arange(len(self)) - self.offsets[self.image_of.cpu()]
        cols = torch.tensor([image.cols for image in self.images])[self.image_of.cpu()]
        return torch.stack([index // cols, index % cols], dim=1).to(self.device)

    @cached_property
    def people(self) -> Tensor:
        """The number of annotated heads of each image, float32 `(images,)`."""
        return torch.tensor([image.people for image in self.images], dtype=torch.float32)

    # --------------------------------------------------------------------------------------------------- access

    def gather(self, index: Tensor) -> Tensor:
        """The feature vectors of these patches as float32 `(len(index), channels)`, freshly allocated."""
        return self.features[index].float()

    def patches_of(self, image: int) -> slice:
        """The patches of one image."""
        return slice(int(self.offsets[image]), int(self.offsets[image + 1]))

    def image_totals(self, patch_counts: Tensor) -> Tensor:
        """Sum a number per patch over each image: float64 `(images,)` on the CPU."""
        totals = torch.zeros(len(self.images), dtype=torch.float64)
        return totals.index_add_(0, self.image_of.cpu(), patch_counts.detach().cpu().double())

    # ------------------------------------------------------------------------------------------------- variants

    def split(self, name: str) -> FeatureBank:
        """The images of one split, or of several joined by `+`, with this bank's quantizer.

        `train:1/5` is the first of five shares of the split `train`, `train:-1/5` all but that, and `train:-IMG_8` all
        but that photo (`splits`). Of a division such as the folds of UCF_CC_50, the quantizer is fitted to that
        division's training images.
        """
        found = {each: self._images_of(each) for each in name.split("+")}
        if not any(found.values()):
            divided = self._divided(min(each.partition(":")[0] for each in found))
            if divided is not None:
                return divided.split(name)
        for each, images in found.items():
            if not images:
                there = ", ".join(sorted({image.split for image in self.images}))
                raise LibraError(f"Bank {self.name!r} has no split {each!r}; it has: {there}.")
        return self.select(sorted({i for images in found.values() for i in images}))

    def _images_of(self, split: str) -> list[int]:
        """The places of the images of a split or of a share of one; the views of a photo stay together."""
        whole = [i for i, image in enumerate(self.images) if image.split == split]
        if whole:
            return whole
        wanted = part(split)
        photos = {i: image.photo for i, image in enumerate(self.images) if image.split == wanted.split}
        picked = wanted.pick(photos.values())
        return [i for i, photo in photos.items() if photo in picked]

    def _divided(self, split: str) -> FeatureBank | None:
        """This bank by the division that `split` is of, if that is another one."""
        names = [image.photo for image in self.images]
        roles = None if self.divide is None else self.divide(split, names)
        if roles is None or split not in roles:
            return None
        images = tuple(replace(image, split=role) for image, role in zip(self.images, roles))
        counts = training_counts(self.counts, images)
        quantizer = Quantizer.fit_log(counts, readout="mean")
        return replace(self, images=images, quantizer=quantizer, fullest=float(counts.max()), divide=None)

    def select(self, images: Iterable[int]) -> FeatureBank:
        """Some images of this bank by number or by a mask, with this bank's quantizer.

        Images that follow each other share its features.
        """
        keep = self._numbers(images)
        if not keep:
            raise LibraError(f"No image of bank {self.name!r} was chosen; a bank needs at least one.")
        if keep == list(range(len(self.images))):
            return self
        spans = [self.patches_of(i) for i in keep]
        patches = torch.cat([torch.arange(s.start, s.stop) for s in spans])
        features: Features
        if not bool((patches.diff() == 1).all()):
            features = self.features[patches.to(self.device)]
        elif isinstance(self.features, Tensor):
            features = self.features[int(patches[0]) : int(patches[-1]) + 1]
        else:
            features = self.features.run(int(patches[0]), int(patches[-1]) + 1)
        return replace(
            self,
            features=features,
            counts=self.counts[patches.to(self.device)],
            images=tuple(self.images[i] for i in keep),
            points=None if self.points is None else tuple(self.points[i] for i in keep),
        )

    def _numbers(self, images: Iterable[int]) -> list[int]:
        """The numbers of these images, which may be given as a mask over all of them."""
        given = np.asarray(images if isinstance(images, np.ndarray | Tensor) else list(images))
        if given.dtype == np.bool_ and given.shape == (len(self.images),):
            given = np.flatnonzero(given)
        if given.size and (given.dtype.kind not in "iu" or given.ndim != 1):
            raise LibraError(
                f"Images are chosen by whole numbers, or by a mask of {len(self.images)} entries; got {given.dtype} of "
                f"shape {given.shape}."
            )
        numbers: list[int] = given.tolist()
        for number in numbers:
            if not 0 <= number < len(self.images):
                raise LibraError(
                    f"Image {number} is not in bank {self.name!r}; it must be from 0 to {len(self.images) - 1}."
                )
        return numbers

    def wholes(self) -> FeatureBank:
        """Each photo once: its views are left out, unless they are all that there is of it."""
        whole = {image.name for image in self.images if image.name == image.photo}
        return self.select(
            i for i, image in enumerate(self.images) if image.name == image.photo or image.photo not in whole
        )

    def join(self, *others: FeatureBank) -> FeatureBank:
        """This bank and the images of others, which must be of the same backbone, with this bank's quantizer.

        For training on several data sets, or on photos as they are and made smaller. Features are copied.
        """
        if not others:
            return self
        for other in others:
            ours, theirs = self.meta.get("weights"), other.meta.get("weights")
            if other.channels != self.channels:
                raise LibraError(
                    f"Bank {other.name!r} has {other.channels} features a patch and {self.name!r} has {self.channels}; "
                    "only banks of one backbone can be joined."
                )
            if ours is not None and theirs is not None and ours != theirs:
                raise LibraError(
                    f"Bank {other.name!r} holds features of the weights {theirs[:12]}…, but {self.name!r} those of "
                    f"{ours[:12]}…; only banks of one backbone can be joined."
                )
        banks = (self, *others)
        points = [bank.points for bank in banks]
        return replace(
            self,
            features=torch.cat([bank.features.to(self.device) for bank in banks]),
            counts=torch.cat([bank.counts.to(self.device) for bank in banks]),
            images=tuple(image for bank in banks for image in bank.images),
            points=None if any(dots is None for dots in points) else tuple(d for dots in points for d in dots or ()),
            meta={key: value for key, value in self.meta.items() if key != "photos"},  # they may have the same names
            fullest=max(bank.fullest for bank in banks),
            divide=None,
        )

    def to(self, device: torch.device | str) -> FeatureBank:
        """The same bank on another device."""
        return replace(self, features=self.features.to(device), counts=self.counts.to(device))

    def with_quantizer(self, quantizer: Quantizer) -> FeatureBank:
        """The same bank with other intervals."""
        return replace(self, quantizer=quantizer)

    # ------------------------------------------------------------------------------------------------- one file

    def save(self, path: str | Path, *, compress: bool = False) -> None:
        """Write the whole bank as one safetensors file.

        `compress` keeps one byte per feature: a channel's range is cut in 255 equal steps.
        """
        from safetensors.torch import save

        from libra_gym.features.storage import write_whole

        features = self.features.to("cpu").contiguous()
        tensors: dict[str, Tensor] = {"counts": self.counts.cpu().contiguous()}
        if compress:
            low = features.float().amin(0)
            step = ((features.float().amax(0) - low) / 255).clamp_min(1e-12)
            tensors |= {"low": low, "step": step, "features": ((features.float() - low) / step).round().to(torch.uint8)}
        else:
            tensors["features"] = features
        if self.points is not None:
            tensors["points"] = torch.from_numpy(np.concatenate([np.zeros((0, 2)), *self.points]).astype(np.float32))
            tensors["points_per_image"] = torch.tensor([len(p) for p in self.points])
        about = {
            "name": self.name,
            "images": [asdict(image) for image in self.images],
            "quantizer": self.quantizer.to_dict(),
            "fullest": self.fullest,
            "meta": self.meta,
            "divides": self.divide is not None,
        }
        write_whole(Path(path), save(tensors, metadata={"libra_gym.bank": json.dumps(about)}))

    @classmethod
    def load(cls, path: str | Path) -> FeatureBank:
        """Read what `save` wrote."""
        from safetensors import SafetensorError, safe_open

        if not Path(path).is_file():
            raise LibraError(f"There is no bank file {str(path)!r}.")
        try:
            with safe_open(str(path), framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("libra_gym.bank", "null"))
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
        except (SafetensorError, OSError, json.JSONDecodeError) as error:
            raise LibraError(f"{str(path)!r} is not a readable safetensors file ({error}).") from None
        if about is None or not {"features", "counts"} <= tensors.keys():
            raise LibraError(f"{str(path)!r} is a safetensors file, but not a libra-gym bank.")
        features = tensors["features"]
        if "step" in tensors:
            features = features * tensors["step"] + tensors["low"]
        points = None
        if "points" in tensors:
            sizes = tensors["points_per_image"].tolist()
            points = tuple(p.numpy() for p in tensors["points"].split(sizes))
        images = tuple(BankImage(**{**image, "size": tuple(image["size"])}) for image in about["images"])
        quantizer = Quantizer.from_dict(about["quantizer"])
        meta = about["meta"]
        divide = _division(meta.get("dataset")) if about.get("divides") else None
        fullest = about.get("fullest")  # banks of earlier versions do not say
        return cls(about["name"], features, tensors["counts"], images, quantizer, points, meta, divide, fullest)


def _division(dataset: str | None) -> Division | None:
    """How the photos of a data set are divided in several ways."""
    from libra_gym.datasets import DATASETS, dataset_class

    return dataset_class(dataset).divide if dataset in DATASETS else None
