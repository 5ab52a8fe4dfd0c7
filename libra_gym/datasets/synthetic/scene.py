"""Draws synthetic crowd scenes: a photo and its head dots from nothing but a seed.

They stand in for the photos of the paper's data sets where none are at hand: people under perspective, dense and
empty regions in one picture, clutter that looks a little like heads, and a camera's faults.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from libra_gym.datasets.synthetic.canvas import OVERSAMPLING, Canvas
from libra_gym.datasets.synthetic.clutter import Thing, scatter
from libra_gym.datasets.synthetic.ground import cast_shadows, paint_backdrop, paint_ground, smooth_noise
from libra_gym.datasets.synthetic.people import HEAD_HEIGHT, Crowd, Wardrobe, gather, paint_person
from libra_gym.datasets.synthetic.view import View

SIZE = (224, 256)
SEEN = 0.2  # share of a head that must be visible for it to count


@dataclass(frozen=True)
class Scene:
    """A drawn photo and its dots."""

    image: NDArray[np.uint8]  # (height, width, 3), RGB
    points: NDArray[np.float32]  # (people, 2), x and y of the middle of every head that can be seen


def draw_scene(seed: int, size: tuple[int, int] = SIZE) -> Scene:
    """Draw the scene of a seed; the same seed and size always give the same scene.

    People are as large in a large picture as in a small one, so that patches are alike and a larger picture holds more.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    view = View.random(rng, size)
    canvas = Canvas(size)
    paint_backdrop(canvas, rng, view)
    paint_ground(canvas, rng, view)
    things, crowd = scatter(rng, view), gather(rng, view)
    for thing in things:
        crowd = crowd.outside_of(thing.x, thing.y, thing.kind.reach * thing.radius, 2 * thing.radius)
    _cast_all_shadows(canvas, rng, view, things, crowd)
    heads = _paint_far_to_near(canvas, rng, view, things, crowd)
    return Scene(_photograph(rng, canvas.shrunk()), heads[visible_heads(canvas, heads, crowd.radius)])


def _cast_all_shadows(canvas: Canvas, rng: np.random.Generator, view: View, things: list[Thing], crowd: Crowd) -> None:
    feet = np.concatenate([np.stack([crowd.x, crowd.y], 1), np.array([(t.x, t.y) for t in things]).reshape(-1, 2)])
    breadth = np.concatenate([2 * crowd.radius, [0.6 * t.kind.reach * t.radius for t in things]])
    cast_shadows(canvas, view, feet, breadth, strength=rng.uniform(0.2, 0.6))


def _paint_far_to_near(
    canvas: Canvas, rng: np.random.Generator, view: View, things: list[Thing], crowd: Crowd
) -> NDArray[np.float32]:
    """Paint everything in its turn; returns the middle of every head, `(n, 2)`, the first one's owner being 1."""
    wardrobe = Wardrobe.random(rng)
    heads = np.empty((len(crowd), 2), np.float32)
    waiting = list(things)
    for i, (x, y, r) in enumerate(zip(crowd.x, crowd.y, crowd.radius, strict=True)):
        while waiting and waiting[0].y <= y:
            _paint_thing(canvas, rng, view, waiting.pop(0))
        heads[i] = paint_person(canvas, rng, view, wardrobe, (x, y), r, owner=i + 1)
    for thing in waiting:
        _paint_thing(canvas, rng, view, thing)
    return heads


def _paint_thing(canvas: Canvas, rng: np.random.Generator, view: View, thing: Thing) -> None:
    thing.kind.paint(canvas, rng, view, thing.x, thing.y, thing.radius)


def visible_heads(canvas: Canvas, heads: NDArray[np.float32], radius: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which heads, `(n,)`, have their middle in the picture and are not hidden by what stands before them."""
    height, width = canvas.size
    inside = ((heads >= 0) & (heads < (width, height))).all(axis=1)
    seen = np.bincount(canvas.owners.ravel(), minlength=len(heads) + 1)[1:]
    whole = np.pi * HEAD_HEIGHT * (radius * OVERSAMPLING) ** 2
    return inside & (seen >= SEEN * whole)


def _photograph(rng: np.random.Generator, painting: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Take a photo of the painting: uneven light, white balance, exposure, soft focus, sensor noise and JPEG."""
    size = (painting.shape[0], painting.shape[1])
    photo: NDArray[np.float32] = painting.astype(np.float32) / np.float32(255)
    photo *= 1 + smooth_noise(rng, 3, size) * rng.uniform(0, 0.14)
    photo *= 1 + rng.uniform(-0.05, 0.05, 3).astype(np.float32)
    photo = photo.clip(0, 1) ** np.float32(rng.uniform(0.75, 1.35))
    photo = 0.5 + (photo - 0.5) * np.float32(rng.uniform(0.75, 1.15)) + np.float32(rng.uniform(-0.06, 0.06))
    if rng.random() < 0.05:
        photo[:] = photo.mean(axis=2, keepdims=True)
    photo = np.asarray(cv2.GaussianBlur(photo, (0, 0), rng.uniform(0.2, 0.7)), np.float32)
    photo += rng.standard_normal(photo.shape, dtype=np.float32) * np.float32(rng.uniform(0.004, 0.03))
    quality = int(rng.integers(55, 96))
    levels = (photo * 255).clip(0, 255).astype(np.uint8)
    _, jpeg = cv2.imencode(".jpg", cv2.cvtColor(levels, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, quality])
    return np.asarray(cv2.imdecode(jpeg, cv2.IMREAD_COLOR_RGB), np.uint8)
