"""What a pre-training is made of; the recipes are in `agents/recipes/pretrain.yaml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib import resources
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import yaml

from libra_gym.counts import DEFAULT_KERNEL, KERNELS
from libra_gym.errors import LibraError
from libra_gym.settings import AtLeastOne, Fraction, NotNegative, Positive, Range, Share, check_fields

Method: TypeAlias = Literal["bcnet", "classification", "tasselnetv2", "regression", "weighing"]
Readout: TypeAlias = Literal["argmax", "expectation", "weighed"]
Schedule: TypeAlias = Literal["constant", "cosine", "exponential", "steps"]

STRIDE = 32
_READOUTS: Mapping[Method, tuple[Readout, ...]] = {
    "bcnet": ("expectation", "argmax"),
    "classification": ("expectation", "argmax"),
    "weighing": ("weighed", "expectation", "argmax"),
}


class _Need(NamedTuple):
    """What a setting is of, and whether others leave it anything to do."""

    what: str
    met: Callable[[PretrainSettings], bool]


_OF_LOOKS = _Need("of the looks beside the first, of which there are none with views=1", lambda s: s.views > 1)
_OF_BACKBONE = _Need(
    "of a backbone that learns, which it does not with train_from=head", lambda s: s.train_from != "head"
)
_OF_WEIGHING = _Need("of the method 'weighing'", lambda s: s.method == "weighing")
_NEEDS: Mapping[str, _Need] = {
    "count_loss": _Need("of classifiers", lambda s: s.method not in ("regression", "tasselnetv2") or s.cell_loss > 0),
    "epsilon": _OF_WEIGHING,
    "reach": _OF_WEIGHING,
    "momentum": _Need("of optimizer=sgd", lambda s: s.optimizer == "sgd"),
    "scales": _OF_LOOKS,
    "colours": _OF_LOOKS,
    "grey": _OF_LOOKS,
    "learning_rate": _OF_BACKBONE,
    "warmup": _OF_BACKBONE,
}
"""Settings that are refused where they were given and would do nothing."""


@dataclass(frozen=True)
class PretrainSettings:
    """All settings of a pre-training besides data, weights and seed."""

    method: Method = "bcnet"
    train_from: str = "conv4_1"
    """The first layer that learns; what lies below is frozen. `head`: the whole backbone is frozen."""
    epochs: AtLeastOne = 20
    crop: Annotated[int, Range(STRIDE)] = 384
    """Side of a training crop in pixels."""
    crops_per_photo: AtLeastOne = 1
    """Of each photo, in an epoch."""
    crowded: Share = 0.0
    """The share of crops that are drawn round one of the photo's people instead of anywhere, so that sparse photos
    show more of them."""
    batch_size: AtLeastOne = 4
    accumulate: AtLeastOne = 1
    """Batches per update."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: NotNegative = 5e-5
    head_learning_rate: NotNegative = 1e-3
    warmup: NotNegative = 0.0
    """Epochs in which the backbone's learning rate rises from zero, while a new head finds its place."""
    momentum: Fraction = 0.9
    """Of SGD."""
    weight_decay: NotNegative = 1e-4
    schedule: Schedule = "cosine"
    decay: Positive = 0.99
    """`exponential`: factor per epoch; `steps`: factor at each of `milestones`."""
    milestones: tuple[AtLeastOne, ...] = ()
    """`steps`: epochs after which the learning rate falls."""
    count_loss: NotNegative = 0.5
    """Weight of the L1 error of the expected count beside the cross-entropy."""
    sum_loss: NotNegative = 0.0
    """Weight of the L1 error of each crop's whole count, divided by its patches. What patches miss alike, as in a crowd
    that is counted too low as a whole, weighs more here; what one has and its neighbour lacks does not count."""
    cell_loss: NotNegative = 0.0
    """Weight of the loss of a second classifier, which counts the four cells of 16 pixels that the last layer pools
    into a patch, so that features learn where in a patch people are. It is not part of the finished backbone."""
    average: Fraction = 0.0
    """What an update keeps of an exponential average of the weights, which is judged and saved; 0: no average. The
    first updates keep less."""
    views: AtLeastOne = 2
    """Looks at each photo that are cached. The first is the photo as it is, every second one mirrored."""
    scale: Positive = 1.0
    """How many times larger than it is every photo is looked at, in training and in validation (`libra features
    --scale`)."""
    scales: tuple[Positive, Positive] = (1.0, 1.0)
    """All looks but the first are scaled by a factor from this range as well."""
    colours: Fraction = 0.0
    """All looks but the first have brightness and contrast changed by up to this share."""
    grey: Share = 0.0
    """The share of looks, but for the first, that lose their colours."""
    bins: Literal["log", "integer"] = "log"
    """The paper's logarithmic intervals, or whole numbers of people (with the kernel `points`)."""
    kernel: str = DEFAULT_KERNEL
    readout: Readout = "expectation"
    """How counts are read to choose the best epoch, if the head can be read so; all its ways are reported."""
    epsilon: Share = 0.3
    """Of the method `weighing`: the share of random actions in the weighings that are learnt from."""
    reach: Share = 0.1
    """Of the method `weighing`: what share of its gradient the scale's loss passes on to the backbone, which is
    some ten times as large as that of the one-step head."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.kernel not in KERNELS:
            raise LibraError(f"There is no kernel {self.kernel!r}; the kernels are {', '.join(KERNELS)}.")
        if self.bins == "integer" and self.kernel != "points":
            raise LibraError("Integer bins count hard points; set kernel=points with bins=integer.")
        if self.crop < STRIDE or self.crop % STRIDE:
            raise LibraError(f"A crop's side must be a multiple of {STRIDE}; got {self.crop}.")
        if self.method == "weighing" and self.bins != "log":
            raise LibraError("The intervals of 'weighing' are those of the model; leave bins out.")
        low, high = self.scales
        if low > high:
            raise LibraError(f"scales must be two ascending factors; got {list(self.scales)}.")

    def refuse_idle(self) -> None:
        """Refuse settings that would do nothing; those of a run that goes on are as they were."""
        if self.schedule == "steps" and not self.milestones:
            raise LibraError("schedule=steps lowers the learning rate at milestones, and there are none; set some.")
        if self.milestones and self.schedule != "steps":
            raise LibraError(f"milestones are of schedule=steps, and this one is {self.schedule!r}; leave them out.")
        if self.decay != type(self).decay and self.schedule not in ("exponential", "steps"):
            raise LibraError(f"A learning rate of schedule={self.schedule} has no decay; leave it out.")
        if self.readout not in (readouts := _READOUTS.get(self.method, ("expectation",))):
            raise LibraError(
                f"What {self.method!r} counts cannot be read as {self.readout!r}; readout must be "
                f"{' or '.join(readouts)}."
            )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> PretrainSettings:
        """The inverse of `to_dict`."""
        known = {field.name for field in fields(cls)}
        if unknown := settings.keys() - known:
            raise LibraError(f"A pre-training has no setting {min(unknown)!r}; it has: {', '.join(sorted(known))}.")
        return cls(**settings)


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
    settings = PretrainSettings.from_dict({"method": method, **recipes[method][preset], **(changes or {})})
    settings.refuse_idle()
    for name in changes or ():
        if name in _NEEDS and not _NEEDS[name].met(settings):
            raise LibraError(f"{name} is {_NEEDS[name].what}, and would do nothing here; leave it out.")
    return settings
