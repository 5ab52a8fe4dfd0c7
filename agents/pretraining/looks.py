"""Looks: a photo as it is, mirrored, scaled or with other colours; and crops out of looks with their patch counts."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.pretraining.settings import STRIDE, PretrainSettings
from libra_gym.backbones import preprocess
from libra_gym.counts import HeadDensity, Kernel, Points, Size
from libra_gym.datasets import CrowdDataset, Photo
from libra_gym.datasets.views import View, full, natural_scale


@dataclass(frozen=True)
class Look:
    """The whole of a photo, as the backbone is shown it."""

    view: View
    brightness: float = 0.0
    """Added, as a share of white."""
    contrast: float = 1.0
    grey: bool = False

    @property
    def key(self) -> str:
        """Names the look among those of its photo."""
        view = self.view
        return f"{view.scale:.6f}-{int(view.mirror)}-{self.brightness:.4f}-{self.contrast:.4f}-{int(self.grey)}"

    def pixels(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The photo's pixels in this look."""
        return self.coloured(self.view.apply_image(image))

    def coloured(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Pixels of the view, all or some, in this look's colours."""
        if self.grey:
            pixels = np.repeat(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)[..., None], 3, axis=2)
        if self.contrast != 1.0 or self.brightness != 0.0:
            middle = 127.5
            changed = (pixels.astype(np.float32) - middle) * self.contrast + middle + 255.0 * self.brightness
            pixels = np.clip(np.round(changed), 0, 255).astype(np.uint8)
        return np.asarray(pixels, np.uint8)


@dataclass(frozen=True)
class Scene:
    """A photo of the training or validation set with all that is known of it but its pixels."""

    photo: Photo
    dataset: str
    split: str
    size: Size
    density: HeadDensity
    points: Points

    @property
    def version(self) -> str:
        """Tells this very file from others of the same name, and from what it was before it was changed."""
        path = self.photo.path.resolve()
        try:
            about = path.stat()
        except OSError:  # a scene that is drawn when it is asked for, always the same
            return ""
        return f"{path}|{about.st_size}|{about.st_mtime_ns}"

    def whole(self, scale: float, *, mirror: bool = False) -> View:
        """The photo so many times as large as its data set has it, which for UCF-QNRF is less than it is."""
        return full(self.size, scale=scale * natural_scale(self.dataset, self.size), mirror=mirror)

    @classmethod
    def read(cls, photo: Photo, dataset: str, split: str, kernel: Kernel) -> Scene:
        """Read size and dots; the pixels are looked at once and let go."""
        height, width = photo.image().shape[:2]
        density = HeadDensity(photo.points(), (height, width), kernel)
        return cls(photo, dataset, split, (height, width), density, density.points.astype(np.float32))

    @classmethod
    def read_all(cls, dataset: CrowdDataset, split: str, kernel: Kernel) -> list[Scene]:
        """Those of a split."""
        return [cls.read(photo, dataset.name, split, kernel) for photo in dataset.photos(split)]


def make_look(scene: Scene, settings: PretrainSettings, number: int, rng: np.random.Generator) -> Look:
    """Look number `number` at a photo: the first is the photo at the settings' scale, every second one is mirrored."""
    if number == 0:
        return Look(scene.whole(settings.scale))
    low, high = settings.scales
    scale = settings.scale * float(np.exp(rng.uniform(np.log(low), np.log(high))))
    brightness, contrast = rng.uniform(-settings.colours, settings.colours, 2)
    grey = bool(rng.random() < settings.grey)
    return Look(scene.whole(scale, mirror=number % 2 == 1), float(brightness), 1.0 + float(contrast), grey)


@dataclass(frozen=True)
class Crop:
    """A square of a look that begins on the stem's grid; it may reach into the padding right and below."""

    left: int
    top: int
    side: int

    @classmethod
    def draw(cls, size: Size, side: int, grid: int, rng: np.random.Generator) -> Crop:
        """Anywhere in a padded look of this (unpadded) size, where it hangs over the border pushed back in.

        A square that is drawn where it fits has the look's outermost patches in it only if it begins at the very
        border, next to never; and in photos of streets that is where the far crowd is.
        """

        def begin(length: int) -> int:
            last = (length - side) // grid
            return grid * int(np.clip(rng.integers(-(side // grid), last + side // grid + 1), 0, last))

        height, width = padded_size(size, side)
        return cls(begin(width), begin(height), side)

    @classmethod
    def around(cls, point: NDArray[np.float32], size: Size, side: int, grid: int, rng: np.random.Generator) -> Crop:
        """Anywhere in a padded look of this size where the crop holds the point (x, y of the look)."""

        def begin(place: int, length: int) -> int:
            last = min(place, length - side) // grid
            first = min(max(-(-(place + 1 - side) // grid), 0), last)
            return grid * int(rng.integers(first, last + 1))

        height, width = padded_size(size, side)
        return cls(begin(int(point[0]), width), begin(int(point[1]), height), side)

    def view(self, look: Look) -> View | None:
        """The part of the photo that the crop shows; None if it lies wholly in the padding."""
        height, width = look.view.size
        h, w = min(self.side, height - self.top), min(self.side, width - self.left)
        if h <= 0 or w <= 0:
            return None
        x = width - self.left - w if look.view.mirror else self.left
        return View(x, self.top, w, h, look.view.scale, look.view.mirror)

    def counts(self, look: Look, density: HeadDensity, patch: int = STRIDE) -> tuple[Tensor, Tensor]:
        """People in each patch of the crop, and which patches lie at least partly in the photo."""
        patches = self.side // patch
        counts, valid = torch.zeros(patches, patches), torch.zeros(patches, patches, dtype=torch.bool)
        if (view := self.view(look)) is not None:
            seen = view.integrate(density, patch)
            counts[: seen.shape[0], : seen.shape[1]] = torch.from_numpy(seen.copy())  # no negative strides
            valid[: seen.shape[0], : seen.shape[1]] = True
        return counts, valid

    def pixels(self, look: Look, image: NDArray[np.uint8]) -> Tensor:
        """The crop as the backbone takes it, `(3, side, side)`; what lies beyond the look is padding."""
        if (view := self.view(look)) is None:
            return torch.zeros(3, self.side, self.side)
        return _padded(preprocess(look.coloured(view.apply_image(image))), (self.side, self.side))


def padded_size(size: Size, least: int = 0) -> Size:
    """The next multiples of 32, and no less than `least`."""
    height, width = (max(-(-length // STRIDE) * STRIDE, least) for length in size)
    return height, width


def padded_pixels(look: Look, image: NDArray[np.uint8], least: int = 0) -> Tensor:
    """A look as the backbone takes it, `(3, H, W)`, padded right and below."""
    return _padded(preprocess(look.pixels(image)), padded_size(look.view.size, least))


def _padded(pixels: Tensor, size: Size) -> Tensor:
    height, width = size
    return torch.nn.functional.pad(pixels, (0, width - pixels.shape[2], 0, height - pixels.shape[1]))
