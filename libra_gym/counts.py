"""Head dots → how many people each patch holds, in closed form (the paper's appendix, "Counting Intervals Generation").

A head is a Gaussian round its dot, cut to a square, so its mass inside a rectangle is a product of two differences of
erf. The patch counts of a whole photo are therefore one small matrix product ``rowsᵀ · columns`` over the dots, and no
density map is ever built. Crops, mirrors, scalings and shifted grids only change the edges
(:mod:`libra_gym.datasets.views`).

Dots outside of the photo have no mass; whoever needs to know how many there are asks :func:`inside`. Dots that coincide
are as many people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree
from scipy.special import erf

from libra_gym.errors import LibraError

Points = NDArray[np.float32]  # (dots, 2): x, y
Size = tuple[int, int]  # height, width
PATCH: Final = 32

_BLOCK = 256  # dots at a time: temporaries stay in the cache, products too small for BLAS to start threads


@dataclass(frozen=True)
class Kernel:
    """How the mass of one head lies round its dot; the defaults are the paper's appendix.

    With ``sigma=None`` the kernel is adaptive: σ = ``beta`` · min(d̄, ``cap``), where d̄ is the mean distance to the
    ``neighbours`` nearest other dots, or to all of them if there are fewer. A dot alone in its photo has no d̄ and takes
    ``lone``. Where σ is zero (``sigma=0``, or a dot with only coincident neighbours) the head is a hard point, which
    belongs to the pixel ``[k, k+1)`` it lies in.

    A head's mass is 1 if ``renormalise``, wherever its dot is. Otherwise it is erf(r/√2)², where r is the cut in units
    of σ (0.99987 for 4σ), less what lies beyond the photo's border.
    """

    sigma: float | None = None
    """Fixed σ in pixels; ``None`` for the adaptive one."""
    beta: float = 0.3
    neighbours: int = 3
    cap: float | None = None
    """Upper limit of d̄ in pixels."""
    lone: float = 50.0
    """The d̄ of a dot without neighbours, in pixels."""
    cut_sigmas: float | None = 4.0
    """Half side of the square outside of which the head has no mass, in σ; the smaller of both cuts holds."""
    cut_pixels: float | None = None
    """The same in pixels."""
    renormalise: bool = False
    """Scale what is left of a head inside the cut and the photo to one person."""

    def __post_init__(self) -> None:
        if self.sigma is not None and not 0 <= self.sigma < np.inf:
            raise LibraError(f"A kernel's sigma must be zero or more, or None to be adaptive; got {self.sigma}.")
        if self.neighbours < 1:
            raise LibraError(f"A kernel's neighbours must be at least 1; got {self.neighbours}.")
        for name in ("beta", "cap", "lone", "cut_sigmas", "cut_pixels"):
            value = getattr(self, name)
            if value is not None and not 0 < value < np.inf:
                raise LibraError(f"A kernel's {name} must be a positive number; got {value}.")

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Kernel:
        """The kernel that :meth:`to_dict` described."""
        known = [field.name for field in fields(cls)]
        if unknown := set(settings) - set(known):
            raise LibraError(f"Unknown kernel settings {sorted(unknown)}; a kernel has {', '.join(known)}.")
        return cls(**settings)


KERNELS: Final[dict[str, Kernel]] = {
    "paper": Kernel(),
    "capped": Kernel(cap=50.0, cut_sigmas=None, cut_pixels=20.0, renormalise=True),
    "fixed": Kernel(sigma=4.0, renormalise=True),
    "points": Kernel(sigma=0.0, cut_sigmas=None),
}
DEFAULT_KERNEL: Final = "capped"
"""Least oracle error by the appendix's inverse quantization on each data set measured; see docs/datasets.md."""


def inside(points: ArrayLike, size: Size) -> NDArray[np.bool_]:
    """Which dots lie in a photo of this size; a dot that is not a number does not."""
    x, y = np.asarray(points, np.float64).reshape(-1, 2).T
    height, width = size
    return np.asarray((x >= 0) & (x < width) & (y >= 0) & (y < height))


def sigmas(points: ArrayLike, kernel: Kernel) -> NDArray[np.float64]:
    """The σ of each dot in pixels.

    It depends on the neighbours, so it is always taken from all dots of the photo, never from those of a crop.
    """
    points = np.asarray(points, np.float64).reshape(-1, 2)
    dots = len(points)
    if kernel.sigma is not None:
        return np.full(dots, kernel.sigma)
    if dots < 2:
        distance = np.full(dots, kernel.lone)
    else:
        nearest, _ = cKDTree(points).query(points, k=min(kernel.neighbours + 1, dots))
        distance = np.asarray(nearest)[:, 1:].mean(axis=1)  # the first is the dot itself, or one that coincides with it
    return kernel.beta * np.minimum(distance, np.inf if kernel.cap is None else kernel.cap)


class HeadDensity:
    """The density of a photo's heads: an exact function of the plane, to be integrated over any grid of edges.

    :param points: the photo's dots, ``(dots, 2)`` as x, y; those outside of it are dropped
    :param size: the photo's height and width
    """

    def __init__(self, points: ArrayLike, size: Size, kernel: Kernel = KERNELS[DEFAULT_KERNEL]) -> None:
        points = np.asarray(points, np.float64).reshape(-1, 2)
        self.points = points[inside(points, size)]
        self.size = size
        self.kernel = kernel
        self.sigmas = sigmas(self.points, kernel)

    def integrate(self, row_edges: ArrayLike, column_edges: ArrayLike) -> NDArray[np.float32]:
        """People in each cell between increasing edges given in the photo's pixels; nothing lies beyond the photo."""
        height, width = self.size
        rows, columns = np.clip(row_edges, 0.0, height), np.clip(column_edges, 0.0, width)
        counts = np.zeros((len(rows) - 1, len(columns) - 1))
        for start in range(0, len(self.points), _BLOCK):
            block = slice(start, start + _BLOCK)
            counts += self._masses(1, block, rows, height).T @ self._masses(0, block, columns, width)
        return counts.astype(np.float32)

    def _masses(self, axis: int, block: slice, edges: NDArray[np.float64], length: int) -> NDArray[np.float64]:
        """The share of each dot's mass between neighbouring edges along one axis: ``(dots, len(edges) - 1)``."""
        sigma = self.sigmas[block, None]
        offsets = np.concatenate([edges, [0.0, length]]) - self.points[block, axis, None]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            z = offsets / sigma
            reach = np.full_like(sigma, self.kernel.cut_sigmas or np.inf)
            if self.kernel.cut_pixels is not None:
                reach = np.minimum(reach, self.kernel.cut_pixels / sigma)
        z[np.isnan(z)] = -np.inf  # a hard point on an edge belongs to the cell which begins there
        cumulative = erf(np.clip(z, -reach, reach) / np.sqrt(2.0)) / 2
        masses = np.diff(cumulative[:, :-2], axis=1)
        return masses / (cumulative[:, -1:] - cumulative[:, -2:-1]) if self.kernel.renormalise else masses


def patch_edges(length: int, patch: int = PATCH) -> NDArray[np.float64]:
    """Edges of the ``ceil(length / patch)`` patches along a side; the last patch ends where the side does."""
    return np.minimum(np.arange(0, length + patch, patch, dtype=np.float64), length)


def patch_counts(
    points: ArrayLike, size: Size, kernel: Kernel = KERNELS[DEFAULT_KERNEL], *, patch: int = PATCH
) -> NDArray[np.float32]:
    """People in each patch of a photo: ``(ceil(height / patch), ceil(width / patch))``."""
    height, width = size
    return HeadDensity(points, size, kernel).integrate(patch_edges(height, patch), patch_edges(width, patch))
