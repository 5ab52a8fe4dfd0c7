"""UCF_CC_50: fifty grey photos of 96 to 4,633 people, judged by five-fold cross-validation as in the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from libra_gym.counts import Points
from libra_gym.datasets.base import Photo, held_out
from libra_gym.datasets.labels import read_mat
from libra_gym.datasets.released import ReleasedDataset, subdirectory

FOLDS: Final = (
    (9, 13, 17, 28, 32, 36, 44, 45, 49, 50),
    (5, 12, 15, 27, 30, 38, 39, 40, 41, 42),
    (6, 10, 11, 16, 20, 24, 26, 37, 46, 48),
    (4, 7, 8, 18, 19, 21, 25, 29, 34, 35),
    (1, 2, 3, 14, 22, 23, 31, 33, 43, 47),
)
"""Numbers of the test photos of each fold: ``numpy.random.default_rng(50).permutation(50) + 1`` in tens.

There are no official folds, so figures of different papers are of different ones.
"""


TWINS: Final = {
    16: "IMG_21",
    25: "IMG_287",
    28: "IMG_294",
    32: "IMG_297",
    41: "IMG_283 and IMG_118, and as 46 here",
    46: "IMG_283 and IMG_118, and as 41 here",
    49: "IMG_134",
}
"""Photos that ShanghaiTech A has for training, in colour and with dots of its own (`libra data twins`). A counter that
has learnt from A has seen them."""


class UCFCC50(ReleasedDataset):
    """Splits ``all``, and for each fold k of 1 … 5 ``fold{k}-train``, ``fold{k}-validation`` and ``fold{k}-test``.

    Of the forty photos outside of a fold, a fixed four are for validation.
    """

    name = "ucf_cc_50"
    splits = (
        "all",
        *(f"fold{k}-{role}" for k in range(1, len(FOLDS) + 1) for role in ("train", "validation", "test")),
    )
    parts: ClassVar[Mapping[str, int]] = {"all": 50}
    quirks: ClassVar[Mapping[str, str]] = {
        str(number): f"the same photo as in ShanghaiTech A train {twin}" for number, twin in TWINS.items()
    }
    photo_name = "{}.jpg"
    label_name = "{}_ann.mat"
    expects = "1.jpg, 1_ann.mat and so on to 50"

    def _directories(self, part: str) -> tuple[Path, Path] | None:
        folder = subdirectory(self.root, "UCF_CC_50", "UCF_CC_50_img") or self.root
        return folder, folder

    def _photos(self, split: str) -> list[Photo]:
        photos = self._listed["all"]
        if split == "all":
            return list(photos.values())
        divided = self.divide(split, list(photos)) or []
        return [photo for photo, part in zip(photos.values(), divided, strict=True) if part == split]

    @classmethod
    def divide(cls, split: str, names: Sequence[str]) -> list[str] | None:
        """The photos by fold k, for a split ``fold{k}-…``."""
        if split == "all" or split not in cls.splits:
            return None
        fold, _, _ = split.partition("-")
        tested = {str(number) for number in FOLDS[int(fold.removeprefix("fold")) - 1]}
        validation = held_out({name for name in names if name not in tested})
        roles = ("test" if name in tested else "validation" if name in validation else "train" for name in names)
        return [f"{fold}-{role}" for role in roles]

    @staticmethod
    def read_points(labels: Path) -> Points:
        """Dots of a ``k_ann.mat``."""
        return read_mat(labels, lambda mat: mat["annPoints"])
