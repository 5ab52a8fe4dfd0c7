"""Made-up crowd scenes as a data set: no download, no licence, and as many as one likes.

    from libra_gym.datasets.synthetic import draw_scene

    scene = draw_scene(42)  # scene.image, scene.points

The scenes of the data set are those of the embedded `demo` bank, so that a picture can be drawn of what it holds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from libra_gym.counts import Points
from libra_gym.datasets.base import CrowdDataset, Photo
from libra_gym.datasets.labels import read_csv
from libra_gym.datasets.synthetic.scene import SIZE, Scene, draw_scene
from libra_gym.errors import LibraError
from libra_gym.features.storage import write_whole

__all__ = ["SEEDS", "SIZE", "Scene", "Synthetic", "draw_scene", "redraw", "scene_name"]

SEEDS: Final = {"train": range(0, 88), "validation": range(88, 104), "test": range(104, 120)}
"""The seeds of each split's scenes."""


def scene_name(seed: int) -> str:
    """What the scene of a seed is called, as in `scene-0042`."""
    return f"scene-{seed:04d}"


def redraw(name: str) -> Scene:
    """Draw the scene of this name again."""
    if not (match := re.fullmatch(r"scene-(\d+)", name)):
        raise LibraError(f"{name!r} is not the name of a synthetic scene; they are called like {scene_name(42)!r}.")
    return draw_scene(int(match[1]))


class DrawnPhoto(Photo):
    """A photo that is drawn whenever it is looked at, without a file."""

    def image(self) -> NDArray[np.uint8]:
        """The pixels, RGB, ``(height, width, 3)``."""
        return redraw(self.name).image

    def points(self) -> Points:
        """The dots, ``(dots, 2)`` as x, y."""
        return redraw(self.name).points


class Synthetic(CrowdDataset):
    """Scenes drawn from fixed seeds.

    With a `root`, the photos of a split are written there as PNG, each with a CSV file of dots, when the split is asked
    for and they are missing. Without one, nothing is written and photos are drawn whenever they are looked at.
    """

    name = "synthetic"
    splits = tuple(SEEDS)

    def __init__(self, root: Path | None = None) -> None:
        if root is not None and root.exists() and not root.is_dir():
            raise LibraError(f"{str(root)!r} is a file; the drawn scenes need a directory to be written to.")
        if root is not None and (foreign := _foreign(root)) is not None:
            raise LibraError(
                f"{str(root)!r} holds {foreign!r}, which is no drawn scene; scenes are written to the directory, so "
                "give a new one, or leave it out."
            )
        self.root = root

    def _photos(self, split: str) -> list[Photo]:
        kind = DrawnPhoto if self.root is None else Photo
        directory = (self.root or Path()) / split
        photos = []
        for seed in SEEDS[split]:
            path = directory / f"{scene_name(seed)}.png"
            photos.append(kind(scene_name(seed), path, path.with_suffix(".csv"), read_csv))
            if self.root is not None and not path.exists():
                _write(draw_scene(seed), photos[-1])
        return photos


def _foreign(root: Path) -> str | None:
    """A file or directory in `root` that was not written here."""
    if not root.is_dir():
        return None
    for path in root.iterdir():
        if path.name not in SEEDS or not path.is_dir():
            return path.name
        for file in path.iterdir():
            if not re.fullmatch(r"scene-\d+\.(png|csv)(\..*)?", file.name):
                return f"{path.name}/{file.name}"
    return None


def _write(scene: Scene, photo: Photo) -> None:
    photo.path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(photo.labels, ("x,y\n" + "".join(f"{x},{y}\n" for x, y in scene.points.tolist())).encode())
    _, png = cv2.imencode(".png", cv2.cvtColor(scene.image, cv2.COLOR_RGB2BGR))
    write_whole(photo.path, png.tobytes())  # last and at once: a photo that is there is complete, and so are its dots
