"""Where an image's error comes from: too many or too few people, in patches of which density."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.runs.counted import CountedBank
from libra_gym.metrics import Floats
from libra_gym.quantizer import NOBODY

BOUNDS = (NOBODY, 1.0, 3.0, 10.0)
"""True people in a patch at which a density class ends and the next begins."""
CLASSES = ("with nobody", "with under 1", "with 1 to 3", "with 3 to 10", "with 10 or more")


@dataclass(frozen=True)
class Failure:
    """An image with its error, and the class of patches that makes the most of it."""

    image: int
    people: float
    count: float
    shares: tuple[float, ...]
    """Counted less true people in the patches of each density class.

    Together they are the error, but for what the bank's kernel loses of heads at the photo's border.
    """

    @property
    def error(self) -> float:
        """Counted less true people."""
        return self.count - self.people

    @property
    def cause(self) -> str:
        """The class of patches with most of the error, on the error's own side."""
        side = 1.0 if self.error > 0 else -1.0
        worst = CLASSES[int(np.argmax(np.asarray(self.shares) * side))]
        return f"too {'many' if side > 0 else 'few'} in patches {worst}"


def class_errors(counted: CountedBank) -> Floats:
    """Counted less true people in the patches of each density class, `(images, classes)`."""
    truth = counted.bank.counts.cpu().double().numpy()
    table = np.zeros((len(counted.bank.images), len(CLASSES)))
    np.add.at(table, (counted.bank.image_of.cpu().numpy(), np.digitize(truth, BOUNDS)), counted.people - truth)
    return table


def analyse(counted: CountedBank) -> list[Failure]:
    """Every image with its error and the cause of it, in the bank's order."""
    return [
        Failure(i, float(image.people), float(total), tuple(shares.tolist()))
        for i, (image, total, shares) in enumerate(zip(counted.bank.images, counted.totals, class_errors(counted)))
    ]


def by_cause(images: Sequence[Failure]) -> dict[str, list[Failure]]:
    """The images whose error is greater than the mean, by cause: greatest sum of errors first, within a cause too."""
    mae = float(np.mean([abs(image.error) for image in images]))
    groups: dict[str, list[Failure]] = {}
    for image in sorted(images, key=lambda image: -abs(image.error)):
        if abs(image.error) > mae:
            groups.setdefault(image.cause, []).append(image)
    return dict(sorted(groups.items(), key=lambda group: -sum(abs(image.error) for image in group[1])))
