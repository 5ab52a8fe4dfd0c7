"""The crops that a pre-training learns from, drawn anew in every epoch."""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from agents.pretraining.looks import Crop, Look, Scene, make_look
from agents.pretraining.settings import PretrainSettings
from agents.pretraining.stem import StemCache
from libra_gym.counts import PATCH
from libra_gym.features.grids import HALF

Item = tuple[Tensor, Tensor, Tensor]


class CropDataset(Dataset[Item]):
    """The crops of one epoch: a map or an image, its patch counts, and which patches count.

    Where cells are learnt too, the counts are theirs, four for each patch.

    Crop k of epoch e depends on the seed, e and k alone, so that a run that goes on sees what it would have seen.
    """

    def __init__(self, scenes: list[Scene], settings: PretrainSettings, cache: StemCache, seed: int) -> None:
        self.scenes, self.settings, self.cache, self.seed = scenes, settings, cache, seed
        self.epoch = 0
        self._order = np.arange(len(self))

    def __len__(self) -> int:
        return len(self.scenes) * self.settings.crops_per_photo

    def begin(self, epoch: int) -> None:
        """Shuffle for an epoch."""
        self.epoch = epoch
        self._order = np.random.default_rng((self.seed, epoch)).permutation(len(self))

    def __getitem__(self, index: int) -> Item:
        place = int(self._order[index])
        number = place % len(self.scenes)
        scene, settings = self.scenes[number], self.settings
        rng = np.random.default_rng((self.seed, self.epoch, place))
        cached = self.cache.where != "none"
        chosen = int(rng.integers(settings.views))
        look_rng = np.random.default_rng((self.seed, number, chosen)) if cached else rng
        look = make_look(scene, settings, chosen, look_rng)
        crop = self._draw(scene, look, rng)
        counts, valid = crop.counts(look, scene.density, HALF if settings.cell_loss > 0 else PATCH)
        if cached:
            return self.cache.crop(scene, look, crop), counts, valid
        return crop.pixels(look, scene.photo.image()), counts, valid

    def _draw(self, scene: Scene, look: Look, rng: np.random.Generator) -> Crop:
        """Anywhere in the look, or for the share `crowded` of the crops, round one of its people."""
        size, side, grid = look.view.size, self.settings.crop, self.cache.stride
        if self.settings.crowded > 0 and rng.random() < self.settings.crowded:
            people = look.view.apply_points(scene.points, scene.size)
            if len(people):
                return Crop.around(people[rng.integers(len(people))], size, side, grid, rng)
        return Crop.draw(size, side, grid, rng)
