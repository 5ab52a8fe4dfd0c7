"""The Q network: the needle of the scale (Sec. 2.3 of the paper).

A multi-layer perceptron from the patch's features and the weight vector to one Q value per action. The first layer is a
sum of two products, W₁·[FV; W] = W₁ᶠ·FV + W₁ʷ·W, and only the second, eight columns wide, changes while a patch is
weighed. So `embed` computes the first once per patch, and `q` the rest once per step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libra_gym.bank import Features
from libra_gym.errors import LibraError
from libra_gym.settings import AtLeastOne, Fraction, NotNegative, Positive, check_fields


@dataclass(frozen=True)
class NetworkSettings:
    """What the network looks like; the defaults are the paper's, `init_std` and `q_scale` the authors' program's."""

    channels: AtLeastOne = 512
    steps: AtLeastOne = 8
    actions: AtLeastOne = 9
    hidden: tuple[AtLeastOne, ...] = (1024, 1024)
    q_scale: Positive = 100.0
    """The output is multiplied by this."""
    init_std: NotNegative | None = 0.01
    """Weights start normal with this deviation and biases at zero; None is torch's own start."""
    dueling: bool = False
    """Q = value + advantage − mean advantage."""
    dropout: Fraction = 0.0
    """Share of features and hidden units that are left out at random in training."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.hidden:
            raise LibraError("The network needs at least one hidden layer; hidden is empty.")

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain JSON types."""
        return {**asdict(self), "hidden": list(self.hidden)}


def moments(features: Features, block: int = 1 << 18) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel over all feature vectors, a block of them at a time in single precision."""
    mean, squares, number = torch.zeros(()), torch.zeros(()), 0
    for start in range(0, features.shape[0], block):
        rows = features[start : start + block].float()
        variance, centre = torch.var_mean(rows, dim=0, correction=0)
        if len(rows) == features.shape[0]:
            one = len(rows) == 1  # which deviates from nothing
            return centre, torch.std(rows, dim=0, correction=0 if one else 1)
        # Each part's squares about its own mean, and what the means are apart (Chan, Golub and LeVeque, 1979).
        variance, centre = variance.cpu().double(), centre.cpu().double()
        share = len(rows) / (number + len(rows))
        apart = centre - mean
        squares = squares + variance * len(rows) + apart.square() * number * share
        mean, number = mean + apart * share, number + len(rows)
    return mean.float(), (squares / max(number - 1, 1)).sqrt().float()


def standard(features: Features) -> tuple[Tensor, Tensor]:
    """What to take from each channel, and then to multiply it by, so that it has mean 0 and deviation 1."""
    mean, deviation = moments(features)
    return mean, 1.0 / deviation.clamp_min(1e-3)


class ScaleNetwork(nn.Module):
    """Q values of all actions for patches and what lies on their pans."""

    mean: Tensor
    scale: Tensor

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.settings = settings
        widths = (settings.channels + settings.steps, *settings.hidden)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.out = nn.Linear(widths[-1], settings.actions + int(settings.dueling))
        self.register_buffer("mean", torch.zeros(settings.channels))
        self.register_buffer("scale", torch.ones(settings.channels))
        if settings.init_std is not None:
            for layer in (*self.layers, self.out):
                nn.init.normal_(layer.weight, std=settings.init_std)
                nn.init.zeros_(layer.bias)

    def normalise(self, mean: Tensor, scale: Tensor) -> None:
        """Standardise the input, by the `standard` of the feature vectors."""
        self.mean.copy_(mean)
        self.scale.copy_(scale)

    def embed(self, features: Tensor) -> Tensor:
        """The features' share of the first layer, `(patches, hidden[0])`."""
        first: nn.Linear = self.layers[0]  # type: ignore[assignment]
        return F.linear(self._standard(features), first.weight[:, : self.settings.channels], first.bias)

    def q(self, embedded: Tensor, weights: Tensor) -> Tensor:
        """Q values `(patches, actions)` of embedded patches with these weight vectors on their pans."""
        first: nn.Linear = self.layers[0]  # type: ignore[assignment]
        return self._rest(torch.addmm(embedded, weights, first.weight[:, self.settings.channels :].t()))

    def forward(self, features: Tensor, weights: Tensor) -> Tensor:
        """Q values `(patches, actions)`; of one step alone a single product is faster, and its gradient most of all."""
        return self._rest(self.layers[0](torch.cat((self._standard(features), weights), 1)))

    def _standard(self, features: Tensor) -> Tensor:
        """The features as the first layer takes them."""
        return F.dropout((features - self.mean) * self.scale, self.settings.dropout, self.training)

    def _rest(self, first: Tensor) -> Tensor:
        """Q values from what the first layer gave."""
        x = F.relu(first)
        for layer in self.layers[1:]:
            x = F.relu(layer(F.dropout(x, self.settings.dropout, self.training)))
        x = self.out(F.dropout(x, self.settings.dropout, self.training))
        if self.settings.dueling:
            value, advantage = x[:, :1], x[:, 1:]
            x = value + advantage - advantage.mean(1, keepdim=True)
        return x * self.settings.q_scale
