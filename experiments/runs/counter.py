"""Trained counters, opened from a run or from a model file, whatever kind they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open

from agents.heads import FORMAT as HEAD_FORMAT
from agents.heads import Head
from agents.state import under
from experiments.runs.config import RunConfig
from experiments.runs.directory import RunDirectory
from libra_gym.backbones import PRETRAINED, Backbone, load_backbone, read_weights
from libra_gym.bank import FeatureBank
from libra_gym.counter import FORMAT as JOINED_FORMAT
from libra_gym.counter import Counter as PhotoCounter
from libra_gym.errors import LibraError
from libra_gym.evaluation import evaluate
from libra_gym.metrics import Score
from libra_gym.models import RELEASED, find_model
from libra_gym.quantizer import Quantizer
from libra_gym.task import WeighingTask
from libra_gym.weigher import Weigher


class Counter(Protocol):
    """Counts the images of a bank, and knows what it was trained on."""

    about: dict[str, Any]

    def evaluate(self, bank: FeatureBank, readout: Any = ...) -> Score:
        """The error of its counts."""
        ...


def open_joined(model: str | Path, *, one_step: bool = False) -> tuple[Counter, Backbone | None]:
    """The counter of a run or model file, and its backbone where the file has that in it too.

    A run or file of `libra pretrain` counts by the head that it trained. `one_step` takes such a head out of a model
    that weighs, instead of its scale.
    """
    path = Path(model)
    if str(model) in RELEASED and not path.exists():
        path = find_model(model)
    elif path.is_dir() and _has_backbone(best := RunDirectory(path).model_path("best")):
        path = best
    if (says := _header(path, PRETRAINED)) is not None:
        return _pretrained(path, says)
    if _header(path, JOINED_FORMAT) is not None:
        return _joined(path, one_step)
    counter = open_counter(path)
    if one_step and not isinstance(counter, HeadCounter):
        raise LibraError(
            f"{str(model)!r} has no one-step head; give a model of `libra release`, or a run of `libra pretrain`."
        )
    return counter, None


def _has_backbone(file: Path) -> bool:
    return any(_header(file, format) is not None for format in (PRETRAINED, JOINED_FORMAT))


def _joined(path: Path, one_step: bool) -> tuple[Counter, Backbone]:
    """Of a file with backbone, scale and, it may be, the one-step head that the backbone was trained with."""
    joined = PhotoCounter.load(path)
    weigher = joined.weigher
    # Stored in half precision, the backbone is another one than that which the scale was trained on, by a rounding.
    weigher.about["stored_weights"] = joined.backbone.weights_hash
    if not one_step:
        return weigher, joined.backbone
    if weigher.quantizer is None:
        raise LibraError(f"{str(path)!r} weighs real-valued counts; it has no intervals for a one-step head.")
    return _head_in(path, weigher.quantizer, weigher.about), joined.backbone


def _pretrained(path: Path, says: dict[str, Any]) -> tuple[Counter, Backbone]:
    """Of a file of `libra pretrain`: backbone and head."""
    backbone, settings = load_backbone(says["backbone"], str(path)), says["settings"]
    about = {"backbone": backbone.name, "weights": backbone.weights_hash}
    about |= {name: settings[name] for name in ("scale", "kernel")}
    return _head_in(path, Quantizer.from_dict(says["quantizer"]), about), backbone


def _head_in(path: Path, quantizer: Quantizer, about: dict[str, Any]) -> HeadCounter:
    """The 1×1 convolution with which a backbone was pre-trained, as a head on its features."""
    tensors = under("head.", read_weights(path))
    layer = {name.removeprefix("layer."): tensor for name, tensor in tensors.items()}
    if not layer:
        raise LibraError(f"{str(path)!r} has no one-step head in it.")
    if layer.keys() != {"weight", "bias"}:
        raise LibraError(
            f"The head in {str(path)!r} counts windows of several patches, which cannot be read patch by patch; "
            "`libra pretrain` judges it after each epoch."
        )
    try:
        return HeadCounter(Head.of_layer(layer["weight"], layer["bias"], quantizer), about)
    except LibraError as error:
        raise LibraError(f"The one-step head in {str(path)!r} is not of its scale's intervals: {error}") from None


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
            raise LibraError(
                f"{str(run.path)!r} has no {path.name} yet; it is written at the end of the first epoch with an update."
            )
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
        self.check_readout(readout)
        return self.head.evaluate(bank, "argmax" if readout == "mean" else "expectation")

    def check_readout(self, readout: str) -> None:
        """Refuse what a head cannot be read by."""
        if readout not in ("mean", "expectation"):
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
