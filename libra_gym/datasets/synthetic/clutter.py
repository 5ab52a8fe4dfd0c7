"""Things in a synthetic scene that are not people: street furniture, plants, cars, balloons of the size of heads.

Every painter takes the place on the ground (x, y) and the radius `r` that a head would have there, and measures in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from libra_gym.datasets.synthetic.canvas import Canvas, Colour
from libra_gym.datasets.synthetic.people import CLOTHES
from libra_gym.datasets.synthetic.view import View

Painter = Callable[[Canvas, np.random.Generator, View, float, float, float], None]


def _grey(rng: np.random.Generator, low: float = 50, high: float = 170) -> Colour:
    return np.full(3, rng.uniform(low, high)) + rng.uniform(-10, 10, 3)


def _gaudy(rng: np.random.Generator) -> Colour:
    return np.asarray(np.clip(CLOTHES[rng.integers(3, len(CLOTHES))] * rng.uniform(0.85, 1.2), 0, 250))


def _foliage(
    canvas: Canvas, rng: np.random.Generator, view: View, x: float, y: float, r: float, breadth: float, height: float
) -> None:
    """Leaves within an ellipse around (x, y), darker below; rows of haze are taken at `y`."""
    green = np.array([66, 96, 48]) * rng.uniform(0.7, 1.25) + rng.uniform(-14, 14, 3)
    for angle, reach, leaf, light in rng.random((90, 4)):
        dx, dy = np.sqrt(reach) * np.cos(2 * np.pi * angle), np.sqrt(reach) * np.sin(2 * np.pi * angle)
        tone = view.veil((green * (0.8 + 0.45 * light - 0.3 * dy)).clip(0, 255), y)
        size = r * (0.5 + 0.9 * leaf)
        canvas.ellipse(x + dx * breadth, y + dy * height, size * 1.2, size, tone)


def _shrub(canvas: Canvas, rng: np.random.Generator, view: View, x: float, y: float, r: float) -> None:
    height = rng.uniform(2, 4) * r
    _foliage(canvas, rng, view, x, y - height, r, rng.uniform(3, 8) * r, height)


def _tree(canvas: Canvas, rng: np.random.Generator, view: View, x: float, y: float, r: float) -> None:
    crown, trunk = rng.uniform(6, 10) * r, rng.uniform(12, 18) * r * view.upright
    canvas.box(x, y, 0.9 * r, trunk + crown * 0.5, view.veil(np.array([78.0, 60.0, 46.0]), y))
    _foliage(canvas, rng, view, x, y - trunk - crown * 0.6, r * 1.4, crown, crown * 0.8)


def _bollard(canvas: Canvas, rng: np.random.Generator, view: View, x: float, y: float, r: float) -> None:
    tone, tall = view.veil(_grey(rng, 40, 120), y), rng.uniform(6, 9) * r * view.upright
    canvas.box(x, y, 0.7 * r, tall, tone)
    canvas.ellipse(x, y - tall, 0.9 * r, 0.9 * r, tone * 1.15)
    canvas.box(x, y - tall * 0.7, 0.72 * r, 0.8 * r, view.veil(np.array([225.0, 222.0, 214.0]), y))


def _bin(canvas: Canvas, rng: np.random.Generator, view: View, x: float, y: float, r: float) -> None:
    tone, tall = view.veil(_gaudy(rng) * 0.6, y), rng.uniform(7, 10) * r * view.upright
    canvas.polygon([(x - 1.8 * r, y), (x - 2.2 * r, y - tall), (x + 2.2 * r, y - tall), (x + 1.8 * r, y)], tone)
    canvas.ellipse(x, y - tall, 2.3 * r, 0.8 * r, tone * 0.5)


def _cone(canvas: Canvas, rng: np.random.Generator, view: View, x: float, y: float, r: float) -> None:
    tall, tone = rng.uniform(5, 8) * r * view.upright, view.veil(np.array([222.0, 96.0, 40.0]), y)
    canvas.box(x, y, 1.7 * r, 0.5 * r, tone * 0.8)
    canvas.polygon([(x - 1.2 * r, y - 0.4 * r), (x, y - tall), (x + 1.2 * r, y - 0.4 * r)], tone)
    canvas.box(x, y - tall * 0.45, 0.65 * r, 0.9 * r, view.veil(np.array([236.0, 232.0, 226.0]), y))


def _ball(canvas: Canvas, rng: np.random.Generator, view: View, x: float, y: float, r: float) -> None:
    tone, size = view.veil(_gaudy(rng), y), rng.uniform(0.8, 1.3) * r
    canvas.ellipse(x, y - size, size, size, tone * 0.8)
    canvas.ellipse(x + 0.25 * size * np.sign(view.sun), y - 1.25 * size, 0.6 * size, 0.55 * size, tone)


def _balloons(canvas: Canvas, rng: np.random.Generator, view: View, x: float, y: float, r: float) -> None:
    height = rng.uniform(18, 30) * r * view.upright
    for dx, dy in rng.normal(0, 2.2, (rng.integers(3, 12), 2)) * r:
        tone, size = view.veil(_gaudy(rng), y), rng.uniform(0.9, 1.5) * r
        canvas.stroke([(x, y - 6 * r), (x + dx, y - height + dy)], 0.08 * r, view.veil(_grey(rng), y))
        canvas.ellipse(x + dx, y - height + dy, size, 1.2 * size, tone)
        canvas.ellipse(x + dx - 0.3 * size, y - height + dy - 0.4 * size, 0.25 * size, 0.3 * size, tone * 0.4 + 150)


def _lamp(canvas: Canvas, rng: np.random.Generator, view: View, x: float, y: float, r: float) -> None:
    tall, tone = rng.uniform(28, 42) * r * view.upright, view.veil(_grey(rng, 35, 100), y)
    canvas.stroke([(x, y), (x, y - tall)], 0.5 * r, tone)
    for side in ((-1, 1), (0,))[rng.integers(2)]:
        canvas.stroke([(x, y - tall), (x + side * 3 * r, y - tall)], 0.4 * r, tone)
        canvas.ellipse(x + side * 3 * r, y - tall, 1.2 * r, 1.2 * r, view.veil(np.array([238.0, 232.0, 208.0]), y))


def _flag(canvas: Canvas, rng: np.random.Generator, view: View, x: float, y: float, r: float) -> None:
    tall, broad, drop = rng.uniform(22, 36) * r * view.upright, rng.uniform(6, 11) * r, rng.uniform(4, 6) * r
    canvas.stroke([(x, y), (x, y - tall)], 0.35 * r, view.veil(_grey(rng, 60, 200), y))
    along = np.linspace(0, 1, 9)
    wave = 0.7 * r * np.sin(along * rng.uniform(4, 9) + rng.uniform(0, 6))
    for stripe in range(stripes := int(rng.integers(1, 4))):
        upper, lower = (y - tall + drop * (stripe + edge) / stripes + wave for edge in (0, 1))
        outline = np.concatenate(
            [np.stack([x + along * broad, upper], 1), np.stack([x + along * broad, lower], 1)[::-1]]
        )
        canvas.polygon(outline, view.veil(_gaudy(rng), y))


def _railing(canvas: Canvas, rng: np.random.Generator, view: View, x: float, y: float, r: float) -> None:
    half, tall, tone = rng.uniform(10, 25) * r, 8 * r * view.upright, view.veil(_grey(rng, 80, 200), y)
    for level in (1.0, 0.2):
        canvas.stroke([(x - half, y - tall * level), (x + half, y - tall * level)], 0.45 * r, tone)
    for bar in np.arange(x - half, x + half, 1.6 * r):
        canvas.stroke([(bar, y - tall * 0.2), (bar, y - tall)], 0.22 * r, tone * 0.9)


def _parasol(canvas: Canvas, rng: np.random.Generator, view: View, x: float, y: float, r: float) -> None:
    half, tall, rise = rng.uniform(8, 14) * r, 19 * r * view.upright, rng.uniform(3, 6) * r
    colours = view.veil(_gaudy(rng), y), view.veil(np.array([232.0, 228.0, 218.0]), y)
    canvas.stroke([(x, y), (x, y - tall)], 0.4 * r, view.veil(_grey(rng), y))
    hem = np.linspace(-half, half, 9)
    sag = 1.3 * r * np.sqrt(1 - (hem / half) ** 2)
    for rib in range(8):
        light = 0.8 + 0.3 * (rib / 7 if view.sun > 0 else 1 - rib / 7)
        edge = [(x + hem[i], y - tall + sag[i]) for i in (rib, rib + 1)]
        canvas.polygon([(x, y - tall - rise), *edge], np.clip(colours[rib % 2] * light, 0, 255))


def _stall(canvas: Canvas, rng: np.random.Generator, view: View, x: float, y: float, r: float) -> None:
    half, tall = rng.uniform(11, 16) * r, 20 * r * view.upright
    cloth = view.veil(_gaudy(rng), y)
    canvas.box(x, y, half, tall, cloth * 0.35)
    canvas.box(x, y, half, tall * 0.42, cloth * 0.7)
    eaves, ridge = [(x - 1.15 * half, y - tall * 0.85), (x + 1.15 * half, y - tall * 0.85)], y - tall * 1.4
    canvas.polygon([*eaves, (x + 0.6 * half, ridge), (x - 0.6 * half, ridge)], cloth)


def _car(canvas: Canvas, rng: np.random.Generator, view: View, x: float, y: float, r: float) -> None:
    half, tall, facing = 21 * r, 14 * r * view.upright, rng.choice([-1, 1])
    paint = view.veil(_gaudy(rng) if rng.random() < 0.5 else _grey(rng, 30, 220), y)
    glass, rubber = view.veil(np.array([62.0, 74.0, 86.0]), y), view.veil(np.array([28.0, 28.0, 30.0]), y)

    def outline(*corners: tuple[float, float]) -> list[tuple[float, float]]:
        return [(x + facing * half * across, y - tall * up) for across, up in corners]

    roof = outline((-0.85, 0.5), (-0.6, 0.98), (0.25, 1.0), (0.6, 0.55))
    canvas.polygon(outline((-1, 0.15), (-0.98, 0.55), (0.6, 0.62), (0.97, 0.5), (1, 0.15)), paint)
    canvas.polygon(roof, paint * 0.95)
    canvas.polygon(outline((-0.7, 0.58), (-0.53, 0.9), (-0.18, 0.92), (-0.18, 0.58)), glass)
    canvas.polygon(outline((-0.1, 0.58), (-0.1, 0.92), (0.2, 0.92), (0.48, 0.58)), glass)
    canvas.polygon(outline((-1, 0.12), (-1, 0.25), (1, 0.25), (1, 0.12)), paint * 0.7)
    for axle in (-0.6, 0.6):
        canvas.ellipse(x + half * axle, y - 3 * r * view.upright, 3.3 * r, 3.3 * r * view.upright, rubber)
        canvas.ellipse(x + half * axle, y - 3 * r * view.upright, 1.6 * r, 1.6 * r * view.upright, rubber + 110)


@dataclass(frozen=True)
class Kind:
    """A sort of clutter: nobody stands within `reach` heads' radii of it; `share` says how common it is."""

    paint: Painter
    reach: float
    share: float


KINDS = (
    Kind(_shrub, 8, 3),
    Kind(_tree, 4, 2),
    Kind(_bollard, 2, 3),
    Kind(_bin, 4, 2),
    Kind(_cone, 3, 2),
    Kind(_ball, 3, 3),
    Kind(_balloons, 2, 2),
    Kind(_lamp, 2, 2),
    Kind(_flag, 2, 2),
    Kind(_railing, 3, 2),
    Kind(_parasol, 4, 2),
    Kind(_stall, 15, 1.5),
    Kind(_car, 22, 1.5),
)


@dataclass(frozen=True)
class Thing:
    """One piece of clutter on the ground at (x, y), where a head has the radius `radius`."""

    kind: Kind
    x: float
    y: float
    radius: float


def scatter(rng: np.random.Generator, view: View) -> list[Thing]:
    """Put a few sorts of things, none to some twenty in all, on the ground of a view, from far to near."""
    height, width = view.size
    shares = np.array([kind.share for kind in KINDS])
    sorts = rng.choice(len(KINDS), size=rng.integers(0, 5), replace=False, p=shares / shares.sum())
    things = []
    for sort in sorts:
        kind = KINDS[sort]
        for _ in range(rng.integers(1, 8)):
            y = view.top + (height * 1.15 - view.top) * rng.uniform(0.02, 1)
            radius = float(view.radius(np.array(y)))
            if kind.reach * radius < 0.25 * width:  # a car that fills the picture is no clutter but the subject
                things.append(Thing(kind, rng.uniform(-0.05, 1.05) * width, y, radius))
    return sorted(things, key=lambda thing: thing.y)
