"""A trained counter without its training: network, scale and quantizer in one safetensors file.

Nothing here needs Stable-Baselines3, and nothing is unpickled: the file holds tensors, and its header JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from libra_gym.bank import FeatureBank
from libra_gym.errors import LibraError
from libra_gym.evaluation import Evaluation, Readout, Weighed, evaluate
from libra_gym.network import NetworkSettings, ScaleNetwork
from libra_gym.quantizer import Quantizer
from libra_gym.tables import TaskTables
from libra_gym.task import WeighingTask

FORMAT = "libra_gym.weigher"


class Weigher:
    """Weighs patches greedily with a Q network.

    Args:
        network: the needle.
        task: the scale.
        quantizer: intervals ⇄ counts; None when real-valued counts are weighed.
        about: where the model comes from (backbone and a hash of its weights, preprocessing, data); plain JSON types.
    """

    def __init__(
        self,
        network: ScaleNetwork,
        task: WeighingTask,
        quantizer: Quantizer | None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.network = network
        self.task = task
        self.quantizer = quantizer
        self.about = dict(about or {})

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.network.mean.device

    def to(self, device: torch.device | str) -> Weigher:
        """Move the network."""
        self.network.to(device)
        return self

    @torch.inference_mode()
    def weigh_features(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The last value of each patch in ticks, and its actions `(patches, max_steps)` plus one, 0 after the end.

        A patch that has chosen `end` leaves the batch, and the first layer sees each patch's features once.
        """
        self.network.eval()
        rules = TaskTables(self.task, features.device) if self.task.tick == 1.0 else self.task
        embedded = self.network.embed(features)
        history = torch.zeros(len(features), self.task.max_steps, dtype=torch.uint8, device=features.device)
        value = torch.zeros(len(features), dtype=torch.int64, device=features.device)
        live = torch.arange(len(features), device=features.device)
        for step in range(self.task.max_steps):
            q = self.network.q(embedded, self.task.encode(history[live]))
            action = q.masked_fill(~rules.legal(value[live]), -torch.inf).argmax(1)
            history[live, step] = (action + 1).to(torch.uint8)
            value[live] = self.task.place(value[live], action)
            on = (action != self.task.end).nonzero().squeeze(1)
            live, embedded = live[on], embedded[on]
            if len(live) == 0:
                break
        return value, history

    def weigh(self, bank: FeatureBank, task: WeighingTask | None = None, *, batch: int = 8192) -> Weighed:
        """Weigh every patch of a bank. A task can be given only for a check: the network knows one scale."""
        scale = self.task if task is None else task
        if (scale.pool, scale.ceiling, scale.max_steps) != (self.task.pool, self.task.ceiling, self.task.max_steps):
            raise LibraError(
                f"This model weighs 0 to {self.task.ceiling} in {self.task.max_steps} steps, but it is asked to weigh "
                f"0 to {scale.ceiling} in {scale.max_steps}."
            )
        if scale.weight_encoding != self.task.weight_encoding:
            raise LibraError(
                f"This model's weight_encoding is {self.task.weight_encoding!r}, but it is asked to weigh with "
                f"{scale.weight_encoding!r}."
            )
        if bank.channels != self.network.settings.channels:
            raise LibraError(
                f"Bank {bank.name!r} has {bank.channels} features a patch, but this model was trained on "
                f"{self.network.settings.channels}."
            )
        if batch < 1:
            raise LibraError(f"batch is {batch}, but at least 1 patch must be weighed at once.")
        values, histories = [], []
        for start in range(0, len(bank), batch):
            patches = torch.arange(start, min(start + batch, len(bank)), device=bank.device)
            value, history = self.weigh_features(bank.gather(patches).to(self.device))
            values.append(value.cpu().numpy())
            histories.append(history.cpu().numpy())
        actions = np.concatenate(histories).astype(np.int8) - 1
        return Weighed(
            np.concatenate(values), (actions >= 0).sum(1), actions, forced=~(actions == self.task.end).any(1)
        )

    def calibrate(self, bank: FeatureBank, prior: float = 5.0) -> Weigher:
        """The same model with its look-up table fitted to what it really says.

        An agent that is unsure of a patch settles near the median of its intervals, and because intervals are
        logarithmic, the mean of the counts lies higher: summed over a photo, too few people. So each interval's value
        becomes the mean count of the training patches that this agent weighed as that interval, made to rise with the
        interval. `prior` patches with the old value steady the rare ones.
        """
        from scipy.optimize import isotonic_regression

        if self.quantizer is None:
            raise LibraError("This model weighs real-valued counts; it has no look-up table to calibrate.")
        if not prior > 0:
            raise LibraError(f"prior is {prior}, but intervals that were never weighed need one; it must be above 0.")
        value = self.weigh(bank.with_quantizer(self.quantizer)).value
        intervals = self.quantizer.num_intervals
        number = np.bincount(value, minlength=intervals) + prior
        total = np.bincount(value, weights=bank.counts.cpu().numpy(), minlength=intervals)
        means = (total + prior * np.asarray(self.quantizer.values)) / number
        rising = isotonic_regression(means, weights=number).x
        quantizer = replace(self.quantizer, values=tuple(rising.tolist()))
        return Weigher(self.network, self.task, quantizer, {**self.about, "readout": f"calibrated on {bank.name}"})

    def evaluate(self, bank: FeatureBank, readout: Readout = "mean") -> Evaluation:
        """Count the images of a bank with this model's own quantizer."""
        if self.quantizer is not None:
            bank = bank.with_quantizer(self.quantizer)
        return evaluate(self, bank, task=self.task, readout=readout)

    # ----------------------------------------------------------------------------------------------------- one file

    def save(self, path: str | Path) -> None:
        """Write the model as one safetensors file."""
        from safetensors.torch import save

        from libra_gym.features.storage import write_whole

        tensors = {name: value.contiguous() for name, value in self.network.state_dict().items()}
        write_whole(Path(path), save(tensors, metadata={FORMAT: json.dumps(self.header())}))

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> Weigher:
        """Read what `save` wrote."""
        from safetensors import SafetensorError, safe_open

        if not Path(path).is_file():
            raise LibraError(f"There is no model file {str(path)!r}.")
        try:
            with safe_open(str(path), framework="pt", device=str(device)) as file:
                header = json.loads((file.metadata() or {}).get(FORMAT, "null"))
                tensors = {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118 (not a mapping)
        except (SafetensorError, OSError, json.JSONDecodeError) as error:
            raise LibraError(f"{str(path)!r} is not a readable safetensors file ({error}).") from None
        if header is None:
            raise LibraError(f"{str(path)!r} is a safetensors file, but not a libra-gym model.")
        return cls.from_header(header, tensors).to(device)

    def header(self) -> dict[str, Any]:
        """All but the tensors, as plain JSON types."""
        return {
            "network": self.network.settings.to_dict(),
            "task": self.task.to_dict(),
            "quantizer": None if self.quantizer is None else self.quantizer.to_dict(),
            "about": self.about,
        }

    @classmethod
    def from_header(cls, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Weigher:
        """The model that `header` tells of, with the tensors of its network."""
        network = ScaleNetwork(NetworkSettings(**header["network"])).eval()
        network.load_state_dict(tensors)
        quantizer = None if header["quantizer"] is None else Quantizer.from_dict(header["quantizer"])
        return cls(network, WeighingTask.from_dict(header["task"]), quantizer, header["about"])
