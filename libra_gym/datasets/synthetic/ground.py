"""What a synthetic scene stands on and in front of: textured ground in perspective, sky and houses behind it."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from libra_gym.datasets.synthetic.canvas import OVERSAMPLING, Canvas
from libra_gym.datasets.synthetic.view import View

_TEXTURE = 512  # side of the square tile, in texels
_GROUNDS = {  # colour, strength of the noise from coarse to fine
    "asphalt": ((98, 98, 102), (10, 7, 6, 15)),
    "grass": ((86, 114, 58), (16, 14, 14, 26)),
    "stone": ((158, 150, 140), (8, 8, 6, 9)),
    "sand": ((198, 178, 142), (9, 8, 6, 9)),
    "earth": ((122, 100, 78), (14, 12, 9, 13)),
}


def smooth_noise(rng: np.random.Generator, cells: int, size: tuple[int, int], channels: int = 1) -> NDArray[np.float32]:
    """Normal noise of `cells` hills along each side, `(height, width, channels)`.

    Where the sides are multiples of `cells`, it goes on without a seam when the picture is repeated.
    """
    height, width = size
    seeds = rng.standard_normal((cells, cells, channels), dtype=np.float32)
    ring = 2  # cells around, as far as cubic interpolation looks
    around = np.pad(seeds, ((ring, ring), (ring, ring), (0, 0)), mode="wrap")
    rows, columns = -(-height // cells), -(-width // cells)  # pixels per cell
    hills = cv2.resize(around, None, fx=columns, fy=rows, interpolation=cv2.INTER_CUBIC)
    top, left = ring * rows, ring * columns
    return np.asarray(hills, np.float32).reshape(*hills.shape[:2], channels)[top : top + height, left : left + width]


def paint_ground(canvas: Canvas, rng: np.random.Generator, view: View) -> None:
    """Cover the canvas below `view.top` with ground, seen in perspective."""
    texture = _texture(rng)
    height, width = canvas.pixels.shape[:2]
    first = max(0, int(view.top * OVERSAMPLING))
    y = (np.arange(first, height, dtype=np.float32)[:, None] + 0.5) / OVERSAMPLING
    x = (np.arange(width, dtype=np.float32)[None] + 0.5) / OVERSAMPLING
    radius = np.float32(view.slope) * (y - np.float32(view.horizon))
    texels = np.float32(rng.uniform(2.5, 5)) / radius  # per pixel
    across = (x - np.float32(view.size[1] * rng.uniform(0.2, 0.8))) * texels
    along = np.float32(1.2 * max(view.size)) * texels
    turn = rng.uniform(-0.6, 0.6)
    sin, cos = np.float32(np.sin(turn)), np.float32(np.cos(turn))
    seen = cv2.remap(
        texture, across * cos - along * sin, across * sin + along * cos, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP
    )
    # Far ground shows the mean of its texture, as texels there are much smaller than pixels.
    blur = np.clip(1.1 - radius / 3, 0, 0.85)
    fog = np.float32(view.haziness) * np.clip((view.size[0] - y) / np.float32(view.size[0] - view.top), 0, 1)
    mean, haze = texture.mean((0, 1), dtype=np.float32), view.haze.astype(np.float32)
    veil = (mean * blur) * (1 - fog) + haze * fog  # (rows, 3)
    canvas.pixels[first:] = seen * ((1 - blur) * (1 - fog))[..., None] + veil[:, None]


def _texture(rng: np.random.Generator) -> NDArray[np.uint8]:
    kind = rng.choice(list(_GROUNDS))
    colour, strengths = _GROUNDS[kind]
    size = (_TEXTURE, _TEXTURE)
    texture = np.tile(np.array(colour, np.float32) * np.float32(rng.uniform(0.75, 1.2)), (*size, 1))
    texture += rng.uniform(-10, 10, 3).astype(np.float32)
    for cells, strength in zip((8, 32, 128, _TEXTURE), strengths, strict=True):
        texture += smooth_noise(rng, cells, size) * strength
    texture += smooth_noise(rng, 8, size, channels=3) * 4
    if kind == "stone":
        _lay_slabs(rng, texture)
    if kind == "asphalt" and rng.random() < 0.6:
        for line in rng.integers(0, _TEXTURE, rng.integers(1, 4)):
            texture[:, line : line + 7] += rng.uniform(50, 100)
    return texture.clip(0, 255).astype(np.uint8)


def _lay_slabs(rng: np.random.Generator, texture: NDArray[np.float32]) -> None:
    slabs = int(rng.choice([8, 16, 32]))
    side = _TEXTURE // slabs
    tones = rng.normal(0, 7, (slabs, slabs)).repeat(side, 0).repeat(side, 1)
    texture += tones[..., None].astype(np.float32)
    joint = np.arange(_TEXTURE) % side < 2
    texture[joint] *= 0.72
    texture[:, joint] *= 0.72


def paint_backdrop(canvas: Canvas, rng: np.random.Generator, view: View) -> None:
    """Paint sky, houses and a line of trees above the ground, where the view has room for them."""
    if view.top <= 0:
        return
    width = view.size[1]
    rows = int(view.top * OVERSAMPLING) + 1
    zenith = np.array([110, 150, 205]) * rng.uniform(0.7, 1.15) + rng.uniform(-25, 25, 3)
    fall = np.linspace(0, 1, rows)[:, None, None]
    sky = zenith + (view.haze - zenith) * fall
    clouds = smooth_noise(rng, 7, (rows, canvas.pixels.shape[1]))
    canvas.pixels[:rows] = (sky + clouds.clip(0, None) * rng.uniform(0, 35)).clip(0, 255)

    x = -rng.uniform(0, 40)
    while x < width:
        broad, tall = rng.uniform(18, 70), view.top * rng.uniform(0.3, 1.1)
        _paint_house(canvas, rng, view, x + broad / 2, broad / 2, tall)
        x += broad + (rng.uniform(0, 50) if rng.random() < 0.35 else 0)
    if rng.random() < 0.6:
        green = np.array([52, 78, 44]) * rng.uniform(0.7, 1.2)
        for x in np.arange(0, width, rng.uniform(2, 6)):
            leaves = view.veil(green * rng.uniform(0.7, 1.25), view.top)
            canvas.ellipse(x, view.top - rng.uniform(0, 9), rng.uniform(3, 7), rng.uniform(3, 6), leaves)


def _paint_house(
    canvas: Canvas, rng: np.random.Generator, view: View, x: float, half_width: float, tall: float
) -> None:
    wall = np.array([168, 156, 142]) * rng.uniform(0.55, 1.25) + rng.uniform(-22, 22, 3)
    wall = wall.clip(0, 245)
    canvas.box(x, view.top + 1, half_width, tall + 1, view.veil(wall, view.top))
    pane = view.veil(wall * rng.choice([0.5, 0.65, 1.2]), view.top).clip(0, 255)
    storey, bay = rng.uniform(5, 9), rng.uniform(4, 8)
    for sill in np.arange(view.top - storey * 0.6, view.top - tall + storey, -storey):
        for centre in np.arange(x - half_width + bay, x + half_width - bay / 2, bay):
            canvas.box(centre, sill, bay * 0.28, storey * 0.55, pane)


def cast_shadows(
    canvas: Canvas, view: View, feet: NDArray[np.float64], breadth: NDArray[np.float64], strength: float
) -> None:
    """Darken the ground beside what stands at `feet`, `(n, 2)`, and is `breadth` wide, `(n,)`, away from the sun."""
    mask = np.zeros(canvas.pixels.shape[:2], np.uint8)
    for (x, y), b in zip(feet * OVERSAMPLING, breadth * OVERSAMPLING, strict=True):
        reach = b * (1 + 2.5 * abs(view.sun))
        centre = (round(x - np.sign(view.sun) * (reach - b)), round(y))
        cv2.ellipse(mask, centre, (round(reach), max(1, round(b * 0.6))), 0, 0, 360, 255, cv2.FILLED)
    light = 255 - (cv2.GaussianBlur(mask, (0, 0), OVERSAMPLING) * np.float32(strength)).astype(np.uint8)
    cv2.multiply(canvas.pixels, cv2.merge([light] * 3), canvas.pixels, 1 / 255)
