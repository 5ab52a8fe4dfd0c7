"""Trained counters, opened from a run or from a model file, whatever kind they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open

from agents.heads import FORMAT as HEAD_FORMAT
from agents.heads import Head
from experiments.runs.config import RunConfig
from experiments.runs.directory import RunDirectory
from libra_gym.backbones import Backbone
from libra_gym.bank import FeatureBank
from libra_gym.counter import FORMAT as JOINED_FORMAT
from libra_gym.counter import Counter as PhotoCounter
from libra_gym.errors import LibraError
from libra_gym.evaluation import evaluate
from libra_gym.metrics import Score
from libra_gym.models import RELEASED
from libra_gym.quantizer import Quantizer
from libra_gym.task import WeighingTask
from libra_gym.weigher import Weigher


class Counter(Protocol):
    """Counts the images of a bank, and knows what it was trained on."""

    about: dict[str, Any]

    def evaluate(self, bank: FeatureBank, readout: Any = ...) -> Score:
        """The error of its counts."""
        ...


def open_joined(model: str | Path) -> tuple[Counter, Backbone | None]:
    """The counter of a run or model file; a file with its backbone in it, or a released model's name, gives both."""
    path = Path(model)
    if not (str(model) in RELEASED and not path.exists()) and _header(path, JOINED_FORMAT) is None:
        return open_counter(path), None
    joined = PhotoCounter.load(model)
    # Stored in half precision, the backbone is another one than that which the scale was trained on, by a rounding.
    joined.weigher.about["stored_weights"] = joined.backbone.weights_hash
    return joined.weigher, joined.backbone


def open_counter(path: str | Path, which: str = "best") -> Counter:
    """The best (or last) model of a run, or the model in a file without a backbone."""
    path = Path(path)
    if path.is_dir():
        run = RunDirectory(path)
        config = RunConfig.load(run.config_path)
        if config.algorithm.kind == "sb3":
            return SB3Counter(config, run.model_path(which, ".zip"))
        path = run.model_path(which)
        if not path.exists():
            raise LibraError(f"{str(run.path)!r} has no {path.name} yet; it is written at the end of the first epoch.")
    header = _header(path, HEAD_FORMAT)
    return Weigher.load(path) if header is None else HeadCounter(Head.load(path), header["about"])


def open_weigher(model: str | Path) -> Weigher:
    """The scale of a run, of a model file or of a released model."""
    counter, _ = open_joined(model)
    if not isinstance(counter, Weigher):
        raise LibraError(f"{str(model)!r} holds no scale; give a run or a model of libra_dqn, bc or dagger.")
    return counter


class HeadCounter:
    """A one-step head."""

    def __init__(self, head: Head, about: dict[str, Any]) -> None:
        self.head = head
        self.about = about

    def evaluate(self, bank: FeatureBank, readout: str = "mean") -> Score:
        """`mean` takes the likeliest interval's mean, `expectation` the mean over all intervals."""
        if readout == "expectation":
            return self.head.evaluate(bank, "expectation")
        if readout == "mean":
            return self.head.evaluate(bank, "argmax")
        raise LibraError(f"A one-step head has no readout {readout!r}; take 'mean' or 'expectation'.")


class SB3Counter:
    """A model of Stable-Baselines3 in its own zip, which SB3 unpickles: open only what you trust."""

    def __init__(self, config: RunConfig, path: Path) -> None:
        if not path.exists():
            raise LibraError(f"There is no model {str(path)!r} yet; it is written at the end of the first epoch.")
        assert config.task is not None
        self.about = config.about
        self.task = WeighingTask.from_dict(config.task)
        self.quantizer = Quantizer.from_dict(config.quantizer)
        self.model = config.algorithm.load().load(path, device=config.device)

    def evaluate(self, bank: FeatureBank, readout: Any = "mean") -> Score:
        """Count with the quantizer that the model was trained with."""
        return evaluate(self.model, bank.with_quantizer(self.quantizer), task=self.task, readout=readout)


def _header(path: Path, format: str) -> dict[str, Any] | None:
    """What a file of this format says of itself; None where it is of another."""
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, Any] | None = json.loads((file.metadata() or {}).get(format, "null"))
            return header
    except (SafetensorError, OSError, json.JSONDecodeError):
        return None
