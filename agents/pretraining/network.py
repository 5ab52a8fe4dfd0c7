"""One-step counters on a backbone: blockwise classification, blockwise regression, redundant local counts.

Each is a backbone cut in two, a frozen stem and a trunk that learns, and a head over the patches. The stem is not part
of :class:`PatchCounter`, since its maps may come from a cache.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from agents.pretraining.settings import Method, Readout
from libra_gym.backbones import Backbone, join_levels
from libra_gym.errors import LibraError
from libra_gym.quantizer import Quantizer

HEAD = "head"
_WINDOW_CHANNELS = 128
_LOWEST_CELL = -2.0 - math.log(4.0)  # the lowest edge of patches, in the logarithm, for a quarter of their people


class PatchHead(nn.Module, ABC):
    """From features `(B, channels, rows, cols)` to people per patch, and how far off that is."""

    values: Tensor

    def __init__(self, channels: int, quantizer: Quantizer) -> None:
        super().__init__()
        self.quantizer = quantizer
        self.register_buffer("values", torch.tensor(quantizer.values, dtype=torch.float32), persistent=False)

    @abstractmethod
    def loss(self, out: Tensor, counts: Tensor, valid: Tensor, count_loss: float) -> Tensor:
        """How far the output is from the true counts `(B, rows, cols)`, over patches that are `valid`."""

    def sum_loss(self, out: Tensor, counts: Tensor, valid: Tensor) -> Tensor:
        """The L1 error of each crop's whole count, read by expectation, per valid patch."""
        off = (self.read(out, "expectation") - counts).masked_fill(~valid, 0.0).sum((1, 2))  # (B,) people
        return off.abs().sum() / valid.sum().clamp_min(1)

    @property
    def readouts(self) -> tuple[Readout, ...]:
        """The ways to read this head; the first is its own."""
        return ("expectation",)

    @abstractmethod
    def read(self, out: Tensor, readout: Readout) -> Tensor:
        """People in each patch `(B, rows, cols)`."""


class BlockClassifier(PatchHead):
    """A 1×1 classifier over intervals (BCNet)."""

    def __init__(self, channels: int, quantizer: Quantizer) -> None:
        super().__init__(channels, quantizer)
        self.layer = nn.Conv2d(channels, quantizer.num_intervals, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Logits `(B, intervals, rows, cols)`."""
        return self.layer(features)

    def loss(self, out: Tensor, counts: Tensor, valid: Tensor, count_loss: float) -> Tensor:
        """Cross-entropy of the interval, and the L1 error of the expected count if it has a weight."""
        logits, people = out.movedim(1, -1)[valid], counts[valid]
        loss = F.cross_entropy(logits, self.quantizer.quantize(people))
        if count_loss > 0:
            loss = loss + count_loss * F.l1_loss(logits.softmax(-1) @ self.values, people)
        return loss

    @property
    def readouts(self) -> tuple[Readout, ...]:
        """The mean over all intervals, and the likeliest."""
        return ("expectation", "argmax")

    def read(self, out: Tensor, readout: Readout) -> Tensor:
        """The value of the likeliest interval, or the mean over all."""
        if readout == "argmax":
            return self.values[out.argmax(1)]
        return torch.einsum("bcyx,c->byx", out.softmax(1), self.values)


class BlockRegressor(PatchHead):
    """A 1×1 regression of the patch's count."""

    def __init__(self, channels: int, quantizer: Quantizer) -> None:
        super().__init__(channels, quantizer)
        self.layer = nn.Conv2d(channels, 1, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Counts `(B, 1, rows, cols)`."""
        return self.layer(features)

    def loss(self, out: Tensor, counts: Tensor, valid: Tensor, count_loss: float) -> Tensor:
        """L1."""
        return F.l1_loss(out.squeeze(1)[valid], counts[valid])

    def read(self, out: Tensor, readout: Readout) -> Tensor:
        """The counts, none below zero."""
        return out.squeeze(1).clamp_min(0.0)


class LocalCounts(PatchHead):
    """TasselNetv2†: regression of the count of each 64×64 window, two patches by two.

    Windows begin every 32 pixels, half a window before the photo's border too, so that four windows cover each patch. A
    training crop begins anywhere on the stem's grid of 8 pixels, so that in the course of training the windows are
    those at stride 8. The output is what a whole window holds; of one that reaches beyond the border, whose features
    are the mean of the patches that it has, a half or a quarter lies within.
    """

    def __init__(self, channels: int, quantizer: Quantizer) -> None:
        super().__init__(channels, quantizer)
        self.layers = nn.Sequential(
            nn.AvgPool2d(2, stride=1, padding=1, count_include_pad=False),
            nn.Conv2d(channels, _WINDOW_CHANNELS, 1, bias=False),
            nn.BatchNorm2d(_WINDOW_CHANNELS),
            nn.ReLU(),
            nn.Conv2d(_WINDOW_CHANNELS, 1, 1),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Counts of whole windows `(B, 1, rows + 1, cols + 1)`."""
        return self.layers(features)

    def loss(self, out: Tensor, counts: Tensor, valid: Tensor, count_loss: float) -> Tensor:
        """L1 of the people in each window, over those windows whose patches are all valid."""
        covered = _windows(torch.ones_like(counts))  # patches of each window
        within = _windows(valid.to(counts.dtype)) == covered
        return F.l1_loss((out.squeeze(1) * covered / 4)[within], _windows(counts)[within])

    def read(self, out: Tensor, readout: Readout) -> Tensor:
        """Each window's people, none below zero, spread over its patches, and the mean of the four of a patch."""
        return F.avg_pool2d(out.clamp_min(0.0) / 4, 2, stride=1).squeeze(1)


def _windows(patches: Tensor) -> Tensor:
    """Sums over two patches by two, past the border too: `(B, rows + 1, cols + 1)`."""
    return F.avg_pool2d(patches[:, None], 2, stride=1, padding=1, divisor_override=1).squeeze(1)


METHODS: Mapping[Method, type[PatchHead]] = {
    "bcnet": BlockClassifier,
    "classification": BlockClassifier,
    "tasselnetv2": LocalCounts,
    "regression": BlockRegressor,
}


class Trunk(nn.Sequential):
    """The layers above the stem.

    Args:
        units: in their order.
        levels: for a backbone of several levels, after how many units each of them is finished; 0: by the stem.
    """

    def __init__(self, units: Sequence[nn.Module], levels: Sequence[int] = ()) -> None:
        super().__init__(*units)
        self.levels = tuple(levels)

    def forward(self, input: Tensor) -> Tensor:
        """The backbone's features `(B, channels, rows, cols)` of the stem's maps."""
        if not self.levels:
            return super().forward(input)
        maps = [input]
        for unit in self:
            maps.append(unit(maps[-1]))
        return join_levels([maps[level] for level in self.levels])


class CellClassifier(BlockClassifier):
    """A classifier of the cells that the trunk's last layer pools into patches, two by two.

    It begins with the intervals' shares and no weights on the features, and so passes nothing on to them until it has
    learnt something itself.

    Args:
        channels: of the features.
        people: in all cells of the training photos, whose intervals are a quarter of those of patches.
    """

    def __init__(self, channels: int, people: NDArray[np.float32]) -> None:
        super().__init__(channels, Quantizer.fit_log(people, low=_LOWEST_CELL, readout="mean"))
        number = np.bincount(self.quantizer.quantize(people), minlength=self.quantizer.num_intervals) + 1.0
        with torch.no_grad():
            self.layer.weight.zero_()
            self.layer.bias.copy_(torch.from_numpy(np.log(number / number.sum())))  # type: ignore[union-attr]


class Outputs(NamedTuple):
    """What the heads say of a batch."""

    patches: Tensor
    cells: Tensor | None


class PatchCounter(nn.Module):
    """The part that learns: a trunk on top of the frozen stem, a head, and perhaps a second one over cells."""

    def __init__(self, trunk: Trunk, head: PatchHead, cells: CellClassifier | None = None) -> None:
        super().__init__()
        self.trunk, self.head, self.cells = trunk, head, cells

    def forward(self, maps: Tensor) -> Outputs:
        """The heads' output for the stem's maps."""
        if self.cells is None:
            return Outputs(self.head(self.trunk(maps)), None)
        *layers, pooling = self.trunk
        for layer in layers:
            maps = layer(maps)
        return Outputs(self.head(pooling(maps)), self.cells(maps))


def cut(backbone: Backbone, train_from: str) -> tuple[nn.Sequential, Trunk, int]:
    """The backbone below and above the first layer that learns, and the stride between them.

    A layer is named as in the literature for VGG (`conv4_1`), and else as in torchvision (`layer3`, `features.5`);
    `head` freezes the whole backbone. The parts share the backbone's weights. Of a backbone of several levels no more
    than the first may lie below.
    """
    units = dict(backbone.units())
    names = _layer_names(units)
    if train_from != HEAD and train_from not in names:
        raise LibraError(
            f"backbone {backbone.name!r} has no layer {train_from!r} to train from; it has {', '.join(names)}, {HEAD}"
        )
    at = len(units) if train_from == HEAD else names[train_from]
    modules = list(units.values())
    levels = [list(units).index(name) + 1 - at for name in backbone.levels]
    if levels and levels[0] < 0:
        last = [name for name, place in names.items() if place <= at + levels[0]][-1]
        raise LibraError(
            f"backbone {backbone.name!r} has a level below {train_from!r}, so that it cannot be frozen up to there; "
            f"train it from {last!r} or earlier"
        )
    stem, trunk = nn.Sequential(*modules[:at]), Trunk(modules[at:], levels)
    with torch.inference_mode():
        side = stem(torch.zeros(1, 3, 64, 64)).shape[-1]
    return stem, trunk, 64 // side


def _layer_names(units: Mapping[str, nn.Module]) -> dict[str, int]:
    """Each layer that can learn, and its place among the units."""
    plain = any(isinstance(unit, nn.Conv2d) for unit in units.values())
    if not plain:
        return {name: place for place, (name, unit) in enumerate(units.items()) if any(True for _ in unit.parameters())}
    names: dict[str, int] = {}
    block, layer = 1, 1
    for place, unit in enumerate(units.values()):
        if isinstance(unit, nn.Conv2d):
            names[f"conv{block}_{layer}"] = place
            layer += 1
        elif isinstance(unit, nn.MaxPool2d):
            block, layer = block + 1, 1
    return names


def fill_head(head: PatchHead, given: Mapping[str, Tensor], origin: str) -> None:
    """Give a head the weights of a counting checkpoint.

    A classifier of another number of intervals lends the rows that both have; rows beyond its last begin as copies of
    that. Weights under `head.weight` and `head.bias` are those of a single 1×1 layer.
    """
    renamed = {re.sub(r"^(weight|bias)$", r"layer.\1", key): value.float() for key, value in given.items()}
    own = head.state_dict()
    if not renamed:
        raise LibraError(f"{origin} has no head to begin with; give it as --weights, and the head begins anew")
    regresses = [len(layer["layer.bias"]) == 1 for layer in (renamed, own) if "layer.bias" in layer]
    if renamed.keys() != own.keys() or len(set(regresses)) > 1:
        raise LibraError(
            f"The head in {origin} is of another method than {type(head).__name__}; take a file of that method, or "
            "give this one as --weights without --init, and the head begins anew"
        )
    for key, tensor in own.items():
        source = renamed[key]
        if source.shape[1:] != tensor.shape[1:]:
            raise LibraError(f"{origin}: the head's {key!r} has shape {tuple(source.shape)}, not {tuple(tensor.shape)}")
        rows = torch.arange(len(tensor)).clamp_max(len(source) - 1) if tensor.ndim else None
        tensor.copy_(source if rows is None else source[rows])
