"""What a pre-training is made of; the recipes are in `agents/recipes/pretrain.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import resources
from typing import Any, Literal, TypeAlias, get_args

import yaml

from libra_gym.counts import DEFAULT_KERNEL, KERNELS
from libra_gym.errors import LibraError

Method: TypeAlias = Literal["bcnet", "classification", "tasselnetv2", "regression", "weighing"]
Readout: TypeAlias = Literal["argmax", "expectation", "weighed"]
Schedule: TypeAlias = Literal["constant", "cosine", "exponential", "steps"]

STRIDE = 32


@dataclass(frozen=True)
class PretrainSettings:
    """All settings of a pre-training besides data, weights and seed."""

    method: Method = "bcnet"
    train_from: str = "conv4_1"
    """The first layer that learns; what lies below is frozen. `head`: the whole backbone is frozen."""
    epochs: int = 20
    crop: int = 384
    """Side of a training crop in pixels."""
    crops_per_photo: int = 1
    """Of each photo, in an epoch."""
    crowded: float = 0.0
    """The share of crops that are drawn round one of the photo's people instead of anywhere, so that sparse photos
    show more of them."""
    batch_size: int = 4
    accumulate: int = 1
    """Batches per update."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = 5e-5
    head_learning_rate: float = 1e-3
    warmup: float = 0.0
    """Epochs in which the backbone's learning rate rises from zero, while a new head finds its place."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 1e-4
    schedule: Schedule = "cosine"
    decay: float = 0.99
    """`exponential`: factor per epoch; `steps`: factor at each of `milestones`."""
    milestones: tuple[int, ...] = ()
    """`steps`: epochs after which the learning rate falls."""
    count_loss: float = 0.5
    """Weight of the L1 error of the expected count beside the cross-entropy."""
    average: float = 0.0
    """What an update keeps of an exponential average of the weights, which is judged and saved; 0: no average. The
    first updates keep less."""
    views: int = 2
    """Looks at each photo that are cached. The first is the photo as it is, every second one mirrored."""
    scale: float = 1.0
    """How many times larger than it is every photo is looked at, in training and in validation (`libra features
    --scale`)."""
    scales: tuple[float, float] = (1.0, 1.0)
    """All looks but the first are scaled by a factor from this range as well."""
    colours: float = 0.0
    """All looks but the first have brightness and contrast changed by up to this share."""
    grey: float = 0.0
    """The share of looks, but for the first, that lose their colours."""
    bins: Literal["log", "integer"] = "log"
    """The paper's logarithmic intervals, or whole numbers of people (with the kernel `points`)."""
    kernel: str = DEFAULT_KERNEL
    readout: Readout = "expectation"
    """How counts are read to choose the best epoch, if the head can be read so; all its ways are reported."""
    epsilon: float = 0.3
    """Of the method `weighing`: the share of random actions in the weighings that are learnt from."""
    reach: float = 0.1
    """Of the method `weighing`: what share of its gradient the scale's loss passes on to the backbone, which is
    some ten times as large as that of the one-step head."""

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise LibraError(f"There is no pre-training method {self.method!r}; take one of {_names(Method)}.")
        if self.schedule not in get_args(Schedule):
            raise LibraError(f"There is no schedule {self.schedule!r}; take one of {_names(Schedule)}.")
        if self.readout not in get_args(Readout):
            raise LibraError(f"There is no readout {self.readout!r}; take one of {_names(Readout)}.")
        if self.optimizer not in ("adamw", "sgd"):
            raise LibraError(f"There is no optimizer {self.optimizer!r}; take adamw or sgd.")
        if self.bins not in ("log", "integer"):
            raise LibraError(f"There are no bins {self.bins!r}; take log or integer.")
        if self.kernel not in KERNELS:
            raise LibraError(f"There is no kernel {self.kernel!r}; the kernels are {', '.join(KERNELS)}.")
        if self.bins == "integer" and self.kernel != "points":
            raise LibraError("Integer bins count hard points; set kernel=points with bins=integer.")
        if self.crop < STRIDE or self.crop % STRIDE:
            raise LibraError(f"A crop's side must be a multiple of {STRIDE}; got {self.crop}.")
        for name in ("epochs", "crops_per_photo", "batch_size", "accumulate", "views"):
            if getattr(self, name) < 1:
                raise LibraError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if not self.scale > 0:
            raise LibraError(f"scale must be greater than 0; got {self.scale}.")
        low, high = self.scales
        if not 0 < low <= high:
            raise LibraError(f"scales must be two ascending positive factors; got {list(self.scales)}.")
        if not 0 <= self.crowded <= 1:
            raise LibraError(f"crowded must be between 0 and 1; got {self.crowded}.")
        for name in ("epsilon", "reach"):
            if not 0 <= getattr(self, name) <= 1:
                raise LibraError(f"{name} must be between 0 and 1; got {getattr(self, name)}.")
        if self.warmup < 0:
            raise LibraError(f"warmup must be at least 0 epochs; got {self.warmup}.")
        if not 0 <= self.average < 1:
            raise LibraError(f"average must be at least 0 and below 1; got {self.average}.")

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> PretrainSettings:
        """The inverse of `to_dict`."""
        known = {field.name for field in fields(cls)}
        if unknown := settings.keys() - known:
            raise LibraError(f"A pre-training has no setting {min(unknown)!r}; it has: {', '.join(sorted(known))}.")
        plain: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()
        }
        return cls(**plain)


def pretrain_settings(
    method: str, preset: str = "default", changes: Mapping[str, Any] | None = None
) -> PretrainSettings:
    """A method's preset from the recipe file, with these settings changed."""
    text = resources.files("agents").joinpath("recipes", "pretrain.yaml").read_text(encoding="utf-8")
    recipes: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(text)
    if method not in recipes:
        raise LibraError(f"There is no pre-training method {method!r}; take one of {', '.join(recipes)}.")
    if preset not in recipes[method]:
        raise LibraError(f"{method!r} has no preset {preset!r}; it has: {', '.join(recipes[method])}.")
    return PretrainSettings.from_dict({"method": method, **recipes[method][preset], **(changes or {})})


def _names(choices: Any) -> str:
    return ", ".join(get_args(choices))
