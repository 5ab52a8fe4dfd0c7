"""Pictures of a validation image for the logs: its count map, and how its most crowded corner is weighed (Sec. 4.1).

A bank keeps no photos, so that without one the pictures show its head dots on plain ground.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from libra_gym.bank import FeatureBank
from libra_gym.counts import PATCH
from libra_gym.evaluation import Policy, Weighed, readout_values, weigh
from libra_gym.rendering import count_map_figure, weighing_figure
from libra_gym.task import WeighingTask
from libra_gym.weigher import Weigher

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REGION = (4, 5)
"""Rows and columns of patches in the weighing figure."""
_GROUND, _DOT = 235, 60


def draw(
    policy: Policy, bank: FeatureBank, task: WeighingTask, pixels: npt.NDArray[np.uint8] | None = None
) -> dict[str, Figure]:
    """The count map of the most crowded image that the policy makes; of a `Weigher`, how it weighs a region too.

    `pixels` is the photo of that image, where there is one to show.
    """
    if isinstance(policy, Weigher) and policy.quantizer is not None:
        bank = bank.with_quantizer(policy.quantizer)
    image = bank.select([int(bank.people.argmax())])
    weighed = weigh(policy, image, task)
    pixels = _dots(image) if pixels is None else pixels
    shape = (image.images[0].rows, image.images[0].cols)
    counts = readout_values(image, "mean")[weighed.value] if task.tick == 1.0 else weighed.value * task.tick
    totals = (image.images[0].people, float(counts.sum()))
    true_map = image.counts.cpu().numpy().reshape(shape)
    pictures = {"count_map": count_map_figure(pixels, true_map, counts.reshape(shape), totals)}
    if isinstance(policy, Weigher):
        pictures["weighing"] = _weighing(policy, image, weighed, pixels)
    return pictures


def _weighing(weigher: Weigher, image: FeatureBank, weighed: Weighed, pixels: npt.NDArray[np.uint8]) -> Figure:
    """The region with most people in it, with the needle of its fullest patch."""
    task = weigher.task
    rows, cols = image.images[0].rows, image.images[0].cols
    people = image.counts.cpu().numpy().reshape(rows, cols)
    height, width = min(REGION[0], rows), min(REGION[1], cols)
    windows = np.lib.stride_tricks.sliding_window_view(people, (height, width)).sum((2, 3))
    top, left = (int(i) for i in np.unravel_index(windows.argmax(), windows.shape))
    window = np.s_[top : top + height, left : left + width]
    fullest = np.unravel_index(people[window].argmax(), (height, width))
    patch = (int(fullest[0]), int(fullest[1]))

    actions = weighed.actions.T.reshape(-1, rows, cols)[(slice(None), *window)]  # (steps, height, width)
    values = np.zeros(actions.shape)
    value = np.zeros((height, width), dtype=np.int64)
    for step, now in enumerate(actions):
        value = np.where(now >= 0, task.place(value, np.maximum(now, 0)), value)
        values[step] = value * task.tick
    truth = image.intervals.cpu().numpy().reshape(rows, cols)[window] if task.tick == 1.0 else people[window]
    q = _needle(weigher, image, (top + patch[0]) * cols + left + patch[1], weighed)
    region = pixels[top * PATCH :, left * PATCH :][: height * PATCH, : width * PATCH]
    return weighing_figure(region, actions, values, truth, q, task.labels, patch=patch)


@torch.inference_mode()
def _needle(weigher: Weigher, image: FeatureBank, patch: int, weighed: Weighed) -> npt.NDArray[np.float64]:
    """The Q values of a patch before each of its actions, NaN where illegal or after the end."""
    task = weigher.task
    taken = int(weighed.steps[patch])
    history = np.zeros((taken, task.max_steps), dtype=np.uint8)
    value = np.zeros(taken, dtype=np.int64)
    for step in range(1, taken):
        before = weighed.actions[patch, step - 1]
        history[step:, step - 1] = before + 1
        value[step:] = task.place(value[step:], np.full(taken - step, before))
    features = image.gather(torch.tensor([patch], device=image.device)).expand(taken, -1).to(weigher.device)
    weights = task.encode(torch.from_numpy(history)).to(weigher.device)
    q = np.full((task.max_steps, task.num_actions), np.nan)
    q[:taken] = np.where(task.legal(value), weigher.network(features, weights).cpu().numpy(), np.nan)
    return q


def _dots(image: FeatureBank) -> npt.NDArray[np.uint8]:
    """The head dots of a bank's only image, three pixels wide, on plain ground."""
    height, width = image.images[0].size
    pixels = np.full((height, width, 3), _GROUND, dtype=np.uint8)
    for x, y in (np.zeros((0, 2)) if image.points is None else image.points[0]).astype(int):
        pixels[max(y - 1, 0) : max(y + 2, 0), max(x - 1, 0) : max(x + 2, 0)] = _DOT
    return pixels
