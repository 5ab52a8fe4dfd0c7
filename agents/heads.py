"""One-step heads: the yardsticks that read a patch's count at a glance (Eq. 1 and 2 of the paper).

A classifier over the same intervals, or a regressor of the count, on the same frozen features. The paper's heads are
linear (1×1 convolutions); with `hidden=(1024, 1024)` they have the agent's own capacity, which is the fair comparison.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from libra_gym.bank import FeatureBank
from libra_gym.errors import LibraError
from libra_gym.metrics import Score, score
from libra_gym.network import standard
from libra_gym.quantizer import Quantizer
from libra_gym.settings import AtLeastOne, Fraction, NotNegative, Quantile, check_fields

HeadKind: TypeAlias = Literal["classification", "regression"]
HeadReadout: TypeAlias = Literal["argmax", "expectation"]
FORMAT = "libra_gym.head"


@dataclass(frozen=True)
class HeadSettings:
    """How a head looks and learns."""

    kind: HeadKind = "classification"
    hidden: tuple[AtLeastOne, ...] = ()
    learning_rate: NotNegative = 1e-3
    weight_decay: NotNegative = 0.0
    batch_size: AtLeastOne = 512
    epochs: AtLeastOne = 20
    dropout: Fraction = 0.0
    quantile: Quantile = 0.5
    """Which quantile of the possible counts a regressor learns, by a tilted L1 loss; the median is plain L1."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.quantile != 0.5 and self.kind == "classification":
            raise LibraError(f"A head's quantile is {self.quantile}, but only a regressor has one.")


class Head(nn.Module):
    """Features in, one logit per interval or one count out."""

    mean: Tensor
    scale: Tensor

    def __init__(self, settings: HeadSettings, channels: int, quantizer: Quantizer) -> None:
        super().__init__()
        self.settings, self.channels, self.quantizer = settings, channels, quantizer
        outputs = quantizer.num_intervals if settings.kind == "classification" else 1
        layers: list[nn.Module] = [nn.Dropout(settings.dropout)]
        for a, b in pairwise((channels, *settings.hidden)):
            layers += [nn.Linear(a, b), nn.ReLU(), nn.Dropout(settings.dropout)]
        self.layers = nn.Sequential(*layers, nn.Linear((channels, *settings.hidden)[-1], outputs))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))

    def forward(self, features: Tensor) -> Tensor:
        """Logits `(patches, intervals)`, or counts `(patches, 1)`."""
        return self.layers((features - self.mean) * self.scale)

    def loss(self, features: Tensor, counts: Tensor, intervals: Tensor) -> Tensor:
        """Cross-entropy of the intervals, or the (tilted) L1 error of the counts."""
        out = self(features)
        if self.settings.kind == "classification":
            return F.cross_entropy(out, intervals)
        difference = counts - out.squeeze(1)
        above = self.settings.quantile
        return 2.0 * torch.where(difference > 0, above * difference, (above - 1.0) * difference).mean()

    @torch.inference_mode()
    def count(
        self, bank: FeatureBank, readout: HeadReadout = "argmax", batch: int = 8192
    ) -> tuple[Tensor, Tensor | None]:
        """People of each patch, and its interval where the readout names one.

        `argmax` takes the likeliest interval's value, `expectation` the mean over all; a regressor has neither.
        """
        if readout not in get_args(HeadReadout):
            raise LibraError(f"readout is {readout!r}, but a head has: {', '.join(get_args(HeadReadout))}.")
        if bank.channels != self.channels:
            raise LibraError(
                f"Bank {bank.name!r} has {bank.channels} features a patch, but this head was trained on "
                f"{self.channels}."
            )
        self.eval()
        values = torch.tensor(self.quantizer.values, dtype=torch.float32, device=self.mean.device)
        counts: list[Tensor] = []
        intervals: list[Tensor] = []
        for start in range(0, len(bank), batch):
            index = torch.arange(start, min(start + batch, len(bank)), device=bank.device)
            out = self(bank.gather(index).to(self.mean.device))
            if self.settings.kind == "regression":
                counts.append(out.squeeze(1).clamp_min(0.0))
            elif readout == "expectation":
                counts.append(out.softmax(1) @ values)
            else:
                intervals.append(out.argmax(1))
                counts.append(values[intervals[-1]])
        return torch.cat(counts).cpu(), torch.cat(intervals).cpu() if intervals else None

    def evaluate(self, bank: FeatureBank, readout: HeadReadout = "argmax") -> Score:
        """Count the images of a bank."""
        bank = bank.with_quantizer(self.quantizer)
        counts, intervals = self.count(bank, readout)
        return score(counts, bank, intervals=intervals)

    @classmethod
    def of_layer(cls, weight: Tensor, bias: Tensor, quantizer: Quantizer) -> Head:
        """A head that is one finished layer, such as the 1×1 convolution that a backbone was pre-trained with."""
        kind: HeadKind = "regression" if len(weight) == 1 else "classification"
        if kind == "classification" and len(weight) != quantizer.num_intervals:
            raise LibraError(f"A layer of {len(weight)} intervals cannot be read by {quantizer.num_intervals}.")
        head = cls(HeadSettings(kind=kind), weight.shape[1], quantizer)
        head.layers[-1].load_state_dict({"weight": weight.flatten(1).float(), "bias": bias.float()})
        return head

    def save(self, path: str | Path, about: dict[str, Any] | None = None) -> None:
        """Write the head as one safetensors file."""
        from safetensors.torch import save

        from libra_gym.features.storage import write_whole

        header = {
            "settings": asdict(self.settings),
            "channels": self.channels,
            "quantizer": self.quantizer.to_dict(),
            "about": about or {},
        }
        write_whole(Path(path), save(dict(self.state_dict()), metadata={FORMAT: json.dumps(header)}))

    @classmethod
    def load(cls, path: str | Path) -> Head:
        """Read what `save` wrote."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="pt") as file:
                header = json.loads((file.metadata() or {}).get(FORMAT, "null"))
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
        except (SafetensorError, OSError, json.JSONDecodeError) as error:
            raise LibraError(f"{str(path)!r} is not a readable safetensors file ({error}).") from None
        if header is None:
            raise LibraError(f"{str(path)!r} is a safetensors file, but not a libra-gym head.")
        quantizer = Quantizer.from_dict(header["quantizer"])
        head = cls(HeadSettings(**header["settings"]), header["channels"], quantizer)
        head.load_state_dict(tensors)
        return head


class HeadTrainer:
    """Trains a head on a bank, epoch by epoch: Adam with a learning rate that falls to zero along a cosine."""

    def __init__(self, bank: FeatureBank, settings: HeadSettings, device: torch.device | str = "cpu") -> None:
        torch.manual_seed(settings.seed)
        self.bank = bank.to(device)
        self.settings = settings
        self.head = Head(settings, bank.channels, bank.quantizer).to(device)
        mean, scale = standard(self.bank.features)
        self.head.mean.copy_(mean)
        self.head.scale.copy_(scale)
        self.optimizer = torch.optim.AdamW(
            self.head.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, settings.epochs)
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.epoch = 0

    def epochs(self) -> Iterator[float]:
        """Learn; the mean loss after each epoch."""
        while self.epoch < self.settings.epochs:
            yield self.learn_epoch()

    def learn_epoch(self) -> float:
        """One pass through the bank; its mean loss."""
        self.head.train()
        order = torch.randperm(len(self.bank), generator=self.generator).to(self.bank.device)
        total = torch.zeros((), device=self.bank.device)
        for index in order.split(self.settings.batch_size):
            loss = self.head.loss(self.bank.gather(index), self.bank.counts[index], self.bank.intervals[index])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            total += loss.detach() * len(index)
        self.schedule.step()
        self.epoch += 1
        return float(total) / len(self.bank)
