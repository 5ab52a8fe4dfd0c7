"""Pictures of a bank's image: its count map, and how a region of it is weighed (Sec. 4.1).

A bank keeps no photos, so that without one the pictures show its head dots on plain ground.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from experiments.runs.counted import CountedBank, weigh_bank
from libra_gym.bank import FeatureBank
from libra_gym.counts import PATCH
from libra_gym.errors import LibraError
from libra_gym.evaluation import Policy, counts_of
from libra_gym.rendering import animate_weighing, count_map_figure, weighing_figure
from libra_gym.task import WeighingTask
from libra_gym.trajectories import read_needle, true_values, values_before
from libra_gym.weigher import Weigher

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REGION = (4, 5)
"""Rows and columns of patches in the weighing figure."""
_GROUND, _DOT = 205, 50

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Region:
    """Some rows and columns of an image's patches, and the one among them whose needle is shown."""

    top: int
    left: int
    rows: int
    cols: int
    patch: tuple[int, int]
    """Row and column in the image."""

    @property
    def window(self) -> tuple[slice, slice]:
        """The region in a map of the image's patches."""
        return np.s_[self.top : self.top + self.rows, self.left : self.left + self.cols]

    def cut(self, pixels: Pixels) -> Pixels:
        """The region's pixels."""
        return pixels[self.top * PATCH :, self.left * PATCH :][: self.rows * PATCH, : self.cols * PATCH]


def draw(policy: Policy, bank: FeatureBank, task: WeighingTask, pixels: Pixels | None = None) -> dict[str, Figure]:
    """The count map of the most crowded image that the policy makes; of a `Weigher`, how it weighs a region too.

    `pixels` is the photo of that image, where there is one to show.
    """
    image = weigh_bank(policy, bank.select([int(bank.people.argmax())]), task)
    pixels = head_dots(image.bank) if pixels is None else pixels
    pictures = {"count_map": draw_count_map(image, pixels)}
    if isinstance(policy, Weigher):
        place = image.bank.images[0]
        people = image.bank.counts.cpu().numpy().reshape(place.rows, place.cols)
        pictures["weighing"] = draw_weighing(image, pixels, crowded_region(people))
    return pictures


def draw_count_map(image: CountedBank, pixels: Pixels, *, truth_known: bool = True) -> Figure:
    """The only image of a counted bank beside its count maps."""
    place = image.bank.images[0]
    shape = (place.rows, place.cols)
    true_map = image.bank.counts.cpu().numpy().reshape(shape) if truth_known else None
    totals = (place.people if truth_known else None, float(image.people.sum()))
    return count_map_figure(pixels, true_map, image.people.reshape(shape), totals)


def draw_weighing(
    image: CountedBank, pixels: Pixels, region: Region, *, truth_known: bool = True, needle: str = "Q values"
) -> Figure:
    """How a region of the only image of a weighed bank is weighed, and the needle of one of its patches."""
    weighing = image.weighing
    if weighing is None:
        raise LibraError("A one-step head weighs nothing, so there are no steps to draw; take a run of an agent.")
    task, weighed = weighing.task, weighing.weighed
    place = image.bank.images[0]
    actions, values = step_maps(image)
    truth = (true_values(image.bank, task) * task.tick).reshape(place.rows, place.cols)[region.window]
    q = None
    if weighing.needle is not None:
        patch = np.array([region.patch[0] * place.cols + region.patch[1]])
        q = read_needle(weighing.needle, image.bank, task, weighed, patch)[0]
        if weighing.masked:
            q = np.where(task.legal(values_before(weighed.actions[patch], task)[0, :-1]), q, np.nan)
    return weighing_figure(
        region.cut(pixels),
        actions[(slice(None), *region.window)],
        values[(slice(None), *region.window)],
        truth if truth_known else None,
        q,
        task.labels,
        patch=(region.patch[0] - region.top, region.patch[1] - region.left),
        corner=(region.top, region.left),
        needle=needle,
    )


def animate(image: CountedBank, pixels: Pixels, path: Path) -> None:
    """Write how the only image of a weighed bank is weighed, all of it, as a GIF or MP4."""
    actions, values = step_maps(image)
    assert image.weighing is not None
    task = image.weighing.task
    people = counts_of(values_before(image.weighing.weighed.actions, task)[:, 1:], task, image.bank)
    animate_weighing(pixels, actions, values, task.labels, path, totals=people.sum(0).tolist())


def step_maps(image: CountedBank) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.floating]]:
    """Actions, and values after them, of a weighed bank's only image: both `(steps, rows, cols)`."""
    assert image.weighing is not None
    task, actions = image.weighing.task, image.weighing.weighed.actions
    shape = (-1, image.bank.images[0].rows, image.bank.images[0].cols)
    values = values_before(actions, task)[:, 1:] * task.tick
    return actions.T.reshape(shape), values.T.reshape(shape)


def crowded_region(people: npt.NDArray[np.number]) -> Region:
    """The region of a map of people with most of them in it, and its fullest patch."""
    rows, cols = people.shape
    height, width = min(REGION[0], rows), min(REGION[1], cols)
    windows = np.lib.stride_tricks.sliding_window_view(people, (height, width)).sum((2, 3))
    top, left = (int(i) for i in np.unravel_index(windows.argmax(), windows.shape))
    return region_at(people, top, left, height, width)


def region_at(people: npt.NDArray[np.number], top: int, left: int, rows: int, cols: int) -> Region:
    """A region of a map of people, and its fullest patch."""
    inner = people[top : top + rows, left : left + cols]
    row, col = (int(i) for i in np.unravel_index(inner.argmax(), inner.shape))
    return Region(top, left, rows, cols, (top + row, left + col))


def head_dots(image: FeatureBank) -> Pixels:
    """The head dots of a bank's only image, three pixels wide, on plain ground."""
    height, width = image.images[0].size
    pixels = np.full((height, width, 3), _GROUND, dtype=np.uint8)
    for x, y in (np.zeros((0, 2)) if image.points is None else image.points[0]).astype(int):
        pixels[max(y - 1, 0) : max(y + 2, 0), max(x - 1, 0) : max(x + 2, 0)] = _DOT
    return pixels
