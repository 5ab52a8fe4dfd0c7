"""The people of a synthetic scene: where they stand, what they wear, and how they are painted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra_gym.datasets.synthetic.canvas import Canvas, Colour
from libra_gym.datasets.synthetic.view import View

STATURE = 15.0  # from the feet to the middle of the head, in heads' radii
HEAD_HEIGHT = 1.22  # of its breadth

SKINS = np.array(
    [(247, 214, 190), (232, 190, 160), (208, 160, 126), (172, 120, 86), (128, 84, 58), (88, 58, 42)], float
)
HAIRS = np.array([(24, 20, 18), (44, 32, 26), (74, 50, 34), (112, 78, 46), (176, 140, 90), (150, 146, 142)], float)
CLOTHES = np.array(
    [
        *[(30, 30, 34), (52, 54, 60), (98, 100, 104), (232, 232, 228), (206, 198, 180), (36, 46, 76), (70, 92, 128)],
        *[(170, 38, 40), (196, 92, 44), (214, 178, 60), (58, 112, 66), (44, 108, 160), (112, 62, 120), (206, 130, 150)],
    ],
    float,
)
TROUSERS = np.array([(28, 28, 32), (44, 50, 70), (66, 84, 116), (90, 84, 74), (134, 120, 96), (60, 60, 62)], float)


@dataclass(frozen=True)
class Crowd:
    """Feet on the ground, from far to near: `x`, `y` and the `radius` of the head, all `(n,)`."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    radius: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.x)

    def outside_of(self, x: float, y: float, rx: float, ry: float) -> Crowd:
        """Those who do not stand in the ellipse around (x, y)."""
        clear = ((self.x - x) / rx) ** 2 + ((self.y - y) / ry) ** 2 > 1
        return Crowd(self.x[clear], self.y[clear], self.radius[clear])


def gather(rng: np.random.Generator, view: View) -> Crowd:
    """Let a crowd gather: nobody, strollers, knots of people, or a rally with aisles through it.

    People stand on a jittered grid of places that lie as close as bodies can; how full it is differs from place to
    place, so that one picture has both dense and empty regions.
    """
    x, y = _places(rng, view)
    occupancy = _occupancy(rng, x / view.size[1], y / view.size[0])
    taken = rng.random(len(x)) < occupancy
    order = np.argsort(y[taken], kind="stable")
    x, y = x[taken][order], y[taken][order]
    return Crowd(x, y, view.radius(y))


def _places(rng: np.random.Generator, view: View) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    height, width = view.size
    column_step, row_step = rng.uniform(2.6, 3.6), rng.uniform(2.6, 3.4)  # in heads' radii
    rows: list[NDArray[np.float64]] = []
    y = view.top
    while True:
        radius = float(view.radius(np.array(y)))
        if y - STATURE * view.upright * radius > height:  # from here on, heads are below the picture
            break
        step = column_step * radius
        x = np.arange(-rng.random(), width / step + 1) * step
        rows.append(np.stack([x, np.full_like(x, y), np.full_like(x, radius)]))
        y += row_step * radius
    x, y_all, radius_all = np.concatenate(rows, axis=1)
    jitter = rng.normal(0, 0.28, (2, len(x))).clip(-0.6, 0.6) * radius_all
    return x + column_step * jitter[0], np.maximum(y_all + row_step * jitter[1], view.top)


def _occupancy(rng: np.random.Generator, u: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.float64]:
    """The chance that a place at (u, v), as shares of the width and height, is taken."""
    kind = rng.choice(["nobody", "strollers", "knots", "rally"], p=[0.05, 0.25, 0.36, 0.34])
    if kind == "nobody":
        return np.zeros_like(u)
    if kind == "strollers":
        return _knots(rng, u, v, 6, (0.1, 0.5)) * 10 ** rng.uniform(-1.8, -0.7)
    if kind == "knots":
        few = 10 ** rng.uniform(-3, -1.2)
        return np.maximum(_knots(rng, u, v, int(rng.integers(2, 7)), (0.05, 0.2)) * rng.uniform(0.4, 0.95), few)
    aisles = np.ones_like(u)
    for _ in range(rng.integers(0, 4)):
        angle, offset, half_width = rng.uniform(0, np.pi), rng.uniform(-0.4, 0.4), rng.uniform(0.02, 0.09)
        across = (u - 0.5) * np.sin(angle) + (v - 0.5) * np.cos(angle) - offset
        aisles *= np.where(np.abs(across) < half_width, 0.03, 1)
    ebb = 1 - _knots(rng, u, v, int(rng.integers(0, 4)), (0.08, 0.25))
    return rng.uniform(0.6, 0.95) * aisles * ebb


def _knots(
    rng: np.random.Generator, u: NDArray[np.float64], v: NDArray[np.float64], count: int, spread: tuple[float, float]
) -> NDArray[np.float64]:
    """`count` round hills with flat tops of height 1, `(n,)`."""
    hills = np.zeros_like(u)
    for _ in range(count):
        centre_u, centre_v, width, depth = *rng.random(2), *rng.uniform(*spread, 2)
        hills = np.maximum(hills, 1.6 * np.exp(-(((u - centre_u) / width) ** 2) - ((v - centre_v) / depth) ** 2))
    return np.minimum(hills, 1)


@dataclass(frozen=True)
class Wardrobe:
    """What is worn in a scene; at some events many wear the same colour."""

    theme: Colour
    uniformity: float
    cheering: float

    @classmethod
    def random(cls, rng: np.random.Generator) -> Wardrobe:
        """A day in town, or a match."""
        match = rng.random() < 0.25
        return cls(
            theme=CLOTHES[rng.integers(3, len(CLOTHES))],
            uniformity=float(rng.uniform(0.3, 0.8)) if match else 0.0,
            cheering=float(rng.uniform(0.05, 0.3)) if match else 0.01,
        )

    def shirt(self, rng: np.random.Generator) -> Colour:
        """The colour of one shirt."""
        plain = self.theme if rng.random() < self.uniformity else CLOTHES[rng.integers(len(CLOTHES))]
        return np.clip(plain * rng.uniform(0.8, 1.15) + rng.uniform(-14, 14, 3), 12, 245)


def paint_person(
    canvas: Canvas,
    rng: np.random.Generator,
    view: View,
    wardrobe: Wardrobe,
    feet: tuple[float, float],
    r: float,
    owner: int,
) -> tuple[float, float]:
    """Paint someone whose head has the radius `r` and belongs to `owner`; returns the middle of the head."""
    x, y = feet
    small = rng.random() < 0.06
    tall = STATURE * view.upright * r * (rng.uniform(0.6, 0.8) if small else rng.uniform(0.9, 1.08))
    build = rng.uniform(0.85, 1.15) * (0.8 if small else 1.0)
    head_x, head_y = x + rng.normal(0, 0.25) * r, y - tall
    shoulders, hips = head_y + 1.55 * r, y - 0.47 * tall
    wide, waist = 2.15 * r * build, 1.5 * r * build
    clear, haze = view.fog(y)

    def tone(colour: Colour, light: float = 1.0) -> Colour:
        return colour * (light * clear) + haze

    skin = SKINS[rng.integers(len(SKINS))]
    hair = HAIRS[rng.integers(len(HAIRS))] * rng.uniform(0.8, 1.2)
    shirt, trousers = wardrobe.shirt(rng), TROUSERS[rng.integers(len(TROUSERS))] * rng.uniform(0.8, 1.2)
    stride, shade = rng.uniform(0.2, 1.0) * r, float(np.sign(-view.sun) or 1.0)

    dressed = rng.random() < 0.15
    for side in (-1, 1):
        foot = x + side * stride
        canvas.polygon(
            [
                (x - side * 0.1 * r, hips),
                (x + side * waist, hips),
                (foot + side * 0.5 * r, y),
                (foot - side * 0.3 * r, y),
            ],
            tone(skin if dressed else trousers, 0.8 if side == shade else 1.0),
        )
    if dressed:
        hem = y - rng.uniform(0.12, 0.28) * tall
        canvas.polygon(
            [(x - waist, hips), (x + waist, hips), (x + 1.4 * waist, hem), (x - 1.4 * waist, hem)], tone(shirt, 0.85)
        )

    drop = 0.55 * r  # of the shoulders below the neck
    torso = np.array(
        [
            *[(head_x - 0.6 * r, shoulders - 0.5 * r), (head_x + 0.6 * r, shoulders - 0.5 * r)],
            *[(x + 0.8 * wide, shoulders), (x + wide, shoulders + drop), (x + 0.95 * wide, hips - 0.1 * tall)],
            *[(x + waist, hips + 0.04 * tall), (x - waist, hips + 0.04 * tall)],
            *[(x - 0.95 * wide, hips - 0.1 * tall), (x - wide, shoulders + drop), (x - 0.8 * wide, shoulders)],
        ]
    )
    canvas.polygon(torso, tone(shirt))
    if r > 2:  # what follows is lost on smaller people
        middle = x + 0.25 * shade * wide
        canvas.polygon(
            [(middle, shoulders), (x + shade * wide, shoulders + drop), (x + shade * waist, hips), (middle, hips)],
            tone(shirt, 0.8),
        )
        cheers = rng.random() < wardrobe.cheering
        for side in (-1, 1):
            shoulder = (x + side * 0.85 * wide, shoulders + drop)
            hand = (x + side * wide * 1.1, head_y - 1.8 * r) if cheers else (x + side * wide * 1.05, hips + 0.3 * r)
            canvas.stroke([shoulder, hand], 0.65 * r, tone(shirt, 0.88 if side == shade else 0.96))
            canvas.ellipse(*hand, 0.42 * r, 0.42 * r, tone(skin))

    _paint_head(canvas, rng, head_x, head_y, r * rng.uniform(0.92, 1.05), tone(skin), tone(hair), tone(shirt), owner)
    return head_x, head_y


def _paint_head(
    canvas: Canvas,
    rng: np.random.Generator,
    x: float,
    y: float,
    r: float,
    skin: Colour,
    hair: Colour,
    hat: Colour,
    owner: int,
) -> None:
    tall = HEAD_HEIGHT * r
    faces_us = rng.random() < 0.55
    if rng.random() < 0.25:  # long hair falls on the shoulders
        canvas.ellipse(x, y + 0.5 * r, 1.15 * r, 1.5 * r, hair * 0.85, owner)
    canvas.ellipse(x, y + 1.15 * r, 0.5 * r, 0.6 * r, skin * 0.78)
    canvas.ellipse(x, y, r, tall, skin if faces_us else hair, owner)
    if not faces_us:
        canvas.ellipse(x - 0.2 * r, y - 0.45 * tall, 0.5 * r, 0.35 * tall, np.minimum(hair * 1.25 + 6, 255), owner)
        return
    turned = rng.uniform(-0.3, 0.3) * r
    if r > 3.5:
        for side in (-1, 1):
            canvas.ellipse(x + turned + side * 0.36 * r, y + 0.02 * r, 0.13 * r, 0.09 * r, skin * 0.3, owner)
        canvas.ellipse(x + turned, y + 0.62 * r, 0.26 * r, 0.07 * r, skin * 0.6, owner)
        canvas.ellipse(x + turned, y + 0.3 * r, 0.1 * r, 0.2 * r, skin * 0.86, owner)
    covered = rng.random()
    crown = hat if covered < 0.14 else hair
    hairline = rng.uniform(-0.5, -0.2) * tall
    canvas.polygon(
        [
            *[(x - 1.04 * r, y + 0.05 * tall), (x - 0.98 * r, y - 0.5 * tall), (x - 0.6 * r, y - 0.95 * tall)],
            *[(x, y - 1.1 * tall), (x + 0.6 * r, y - 0.95 * tall), (x + 0.98 * r, y - 0.5 * tall)],
            *[(x + 1.04 * r, y + 0.05 * tall), (x + 0.78 * r, y + hairline), (x - 0.78 * r, y + hairline)],
        ],
        crown,
        owner,
    )
    if covered < 0.09:  # the brim
        canvas.ellipse(x + turned, y + hairline, 1.3 * r, 0.22 * r, crown * 0.75, owner)
