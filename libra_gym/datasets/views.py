"""Views: the crops, mirrors and scalings of a photo that go into the backbone, as data and not as copies.

The paper trains on nine half-size crops of each photo and their mirrors, and on 512 × 512 crops of UCF-QNRF
("Implementation Details"). A view never touches the dots' kernel: σ comes from the whole photo, and the view's patches
are integrated exactly over their edges in the photo, so that a head at a crop's border keeps its share on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from libra_gym.counts import DEFAULT_KERNEL, KERNELS, PATCH, HeadDensity, Kernel, Points, Size, patch_edges
from libra_gym.errors import LibraError

Seed = int | Sequence[int]

QNRF_SIDE: Final = 2048
QNRF_CROP: Final = 512
CROPS: Final = 9


@dataclass(frozen=True)
class View:
    """A box of the scaled photo, mirrored or not.

    A box that begins off the multiples of 32 is a shifted grid. A mirrored view whose width is no multiple of 32 has
    its patch edges elsewhere in the photo than its unmirrored twin.
    """

    x: int
    y: int
    width: int
    height: int
    scale: float = 1.0
    mirror: bool = False

    @property
    def size(self) -> Size:
        """Height and width of the view."""
        return self.height, self.width

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of its patches."""
        return -(-self.height // PATCH), -(-self.width // PATCH)

    def mirrored(self) -> View:
        """The same box, the other way round."""
        return replace(self, mirror=not self.mirror)

    def apply_image(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The view's pixels, a contiguous array of its own."""
        image = resized(image, self._scaled((image.shape[0], image.shape[1])))
        box = image[self.y : self.y + self.height, self.x : self.x + self.width]
        return np.array(box[:, ::-1] if self.mirror else box, order="C")

    def apply_points(self, points: ArrayLike, photo_size: Size) -> Points:
        """The dots that lie in the view, in its own coordinates."""
        height, width = self._scaled(photo_size)
        x, y = np.asarray(points, np.float64).reshape(-1, 2).T
        x, y = x * (width / photo_size[1]) - self.x, y * (height / photo_size[0]) - self.y
        seen = (x >= 0) & (x < self.width) & (y >= 0) & (y < self.height)
        if self.mirror:  # what lies on the left border must not fall out on the right
            x = np.minimum(self.width - x, np.nextafter(np.float32(self.width), np.float32(0)))
        return np.column_stack([x, y])[seen].astype(np.float32)

    def edges(self, photo_size: Size, patch: int = PATCH) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Ascending edges of the patches' rows and columns in the photo's own pixels."""
        height, width = self._scaled(photo_size)
        rows, columns = patch_edges(self.height, patch), patch_edges(self.width, patch)
        if self.mirror:
            columns = self.width - columns[::-1]
        return (self.y + rows) * (photo_size[0] / height), (self.x + columns) * (photo_size[1] / width)

    def integrate(self, density: HeadDensity, patch: int = PATCH) -> NDArray[np.float32]:
        """People in each patch of the view: ``(rows, columns)``; many views of a photo share its density."""
        counts = density.integrate(*self.edges(density.size, patch))
        return np.ascontiguousarray(counts[:, ::-1]) if self.mirror else counts

    def patch_counts(
        self, points: ArrayLike, photo_size: Size, kernel: Kernel = KERNELS[DEFAULT_KERNEL], *, patch: int = PATCH
    ) -> NDArray[np.float32]:
        """People in each patch of the view, from all dots of the photo: ``(rows, columns)``."""
        return self.integrate(HeadDensity(points, photo_size, kernel), patch)

    def _scaled(self, photo_size: Size) -> Size:
        """The size of the scaled photo, which must hold the box."""
        height, width = scaled_size(photo_size, self.scale)
        inside = 0 <= self.x < self.x + self.width <= width and 0 <= self.y < self.y + self.height <= height
        if not inside:
            raise LibraError(f"{self} does not lie in a photo of {photo_size[1]} × {photo_size[0]} pixels.")
        return height, width


def scaled_size(size: Size, scale: float) -> Size:
    """A photo's height and width after scaling, at least one pixel each."""
    return max(round(size[0] * scale), 1), max(round(size[1] * scale), 1)


def resized(pixels: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """The photo with this height and width: averaged where it shrinks, interpolated where it grows."""
    if pixels.shape[:2] == size:
        return pixels
    shrinks = size[0] * size[1] < pixels.shape[0] * pixels.shape[1]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(pixels, size[::-1], interpolation=how), np.uint8)


def full(size: Size, *, scale: float = 1.0, mirror: bool = False) -> View:
    """The whole photo, scaled."""
    height, width = scaled_size(size, scale)
    return View(0, 0, width, height, scale, mirror)


def paper_crops(size: Size, seed: Seed = 0, *, scale: float = 1.0) -> list[View]:
    """The paper's eighteen views: four corners and five random places of half-size crops, and then their mirrors."""
    height, width = scaled_size(size, scale)
    h, w = max(height // 2, 1), max(width // 2, 1)
    corners = [View(x, y, w, h, scale) for y in (0, height - h) for x in (0, width - w)]
    return _with_mirrors(corners + _random_crops((height, width), (h, w), CROPS - len(corners), scale, seed))


def qnrf(size: Size) -> View:
    """The whole photo, made smaller where its shorter side has more than 2048 pixels."""
    return full(size, scale=min(1.0, QNRF_SIDE / min(size)))


def natural_scale(dataset: str, size: Size) -> float:
    """What a data set's photos are scaled by before anything else: the paper limits the size of UCF-QNRF's."""
    return qnrf(size).scale if dataset == "ucf_qnrf" else 1.0


def qnrf_crops(size: Size, seed: Seed = 0) -> list[View]:
    """Nine random crops of at most 512 × 512 pixels from the photo as :func:`qnrf` sees it, and then their mirrors.

    A photo that is no larger is taken once, and its mirror: all crops of it would be the same.
    """
    whole = qnrf(size)
    crop = min(QNRF_CROP, whole.height), min(QNRF_CROP, whole.width)
    if crop == whole.size:
        return _with_mirrors([whole])
    return _with_mirrors(_random_crops(whole.size, crop, CROPS, whole.scale, seed))


def _random_crops(size: Size, crop: Size, number: int, scale: float, seed: Seed) -> list[View]:
    rng = np.random.default_rng(seed)
    (height, width), (h, w) = size, crop
    places = zip(rng.integers(width - w + 1, size=number), rng.integers(height - h + 1, size=number))
    return [View(int(x), int(y), w, h, scale) for x, y in places]


def _with_mirrors(views: list[View]) -> list[View]:
    return views + [view.mirrored() for view in views]
