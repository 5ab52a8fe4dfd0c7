"""What the camera of a synthetic scene sees: perspective, and the light and haze that colours pass through."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra_gym.datasets.synthetic.canvas import Colour

SMALLEST_HEAD = 1.8  # radius in pixels; the ground ends where heads would be smaller
STEEPEST = 0.06  # growth of a head's radius per row; from about 0.07 on, people near by would rise above the horizon


@dataclass(frozen=True)
class View:
    """A camera above flat ground. Lengths on the ground are measured in heads' radii, about 10 cm each."""

    size: tuple[int, int]
    top: float  # the row at which the ground begins; above it is the backdrop, if it is inside the picture
    far: float  # radius in pixels of a head whose owner stands at `top`
    near: float  # the same at the lower edge
    upright: float  # how much of a standing person's height is seen; below 1 the camera looks down
    sun: float  # direction of the light, -1 (from the left) to 1 (from the right)
    haze: Colour
    haziness: float  # share of the haze in the colour of what stands at `top`

    @classmethod
    def random(cls, rng: np.random.Generator, size: tuple[int, int]) -> View:
        """Anything from a street seen from a balcony to a rally seen from a helicopter."""
        height, _ = size
        near = float(np.exp(rng.uniform(np.log(3.2), np.log(11))))
        far = max(SMALLEST_HEAD, near / rng.uniform(1.4, 4.5))
        backdrop = rng.random() < 0.45
        top = height * float(rng.uniform(0.08, 0.3) if backdrop else rng.uniform(-0.25, -0.02))
        return cls(
            size=size,
            top=top,
            far=far,
            near=min(max(near, far * 1.2), far + STEEPEST * (height - top)),
            upright=float(rng.uniform(0.45, 0.9)),
            sun=float(rng.uniform(-1, 1)),
            haze=np.array([190, 198, 208]) + rng.uniform(-25, 25, 3),
            haziness=float(rng.uniform(0, 0.45)),
        )

    @property
    def slope(self) -> float:
        """How fast heads grow, in pixels of radius per row."""
        return (self.near - self.far) / (self.size[0] - self.top)

    @property
    def horizon(self) -> float:
        """The row at which a head would shrink to nothing."""
        return self.top - self.far / self.slope

    def radius(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        """The radius of the head of someone whose feet are at row `y`."""
        return self.slope * (y - self.horizon)

    def fog(self, y: float) -> tuple[float, Colour]:
        """How much is left of the colour of what stands at row `y`, and what haze is added to it."""
        depth = min(max((self.size[0] - y) / (self.size[0] - self.top), 0.0), 1.0)
        share = self.haziness * depth
        return 1 - share, self.haze * share

    def veil(self, colour: Colour, y: float) -> Colour:
        """`colour` as it looks from afar when it stands at row `y`."""
        left, added = self.fog(y)
        return colour * left + added
