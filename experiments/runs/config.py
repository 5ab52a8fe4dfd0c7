"""What a run is: every setting, resolved, and the bank it learns from."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import reduce
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from agents.libra_dqn.checks import ELSEWHERE, LOOKS_AHEAD
from agents.registry import Algorithm, find_algorithm
from libra_gym.bank import FeatureBank
from libra_gym.banks import bank_names, load_bank
from libra_gym.errors import LibraError
from libra_gym.kind import Kind
from libra_gym.models import RELEASED
from libra_gym.network import NetworkSettings
from libra_gym.quantizer import Quantizer
from libra_gym.splits import goes_by, left_out
from libra_gym.task import PAPERS_ALONE, WeighingTask


def read_config(path: Path, cls: type[Any], what: str) -> dict[str, Any]:
    """The settings in a `config.json`: the fields of the dataclass `cls`; those with a default may be missing."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LibraError(
            f"{str(path.parent)!r} is no {what}: its {path.name} cannot be read ({error.strerror})."
        ) from None
    except ValueError as error:
        raise LibraError(f"{str(path)!r} is damaged ({error}); start the {what} anew.") from None
    known = {field.name for field in fields(cls)}
    needed = {field.name for field in fields(cls) if field.default is MISSING}
    given = settings.keys() if isinstance(settings, dict) else set()
    for command, mark in (("libra train", "algo"), ("libra pretrain", "dataset")):
        if mark in given and mark not in known:
            raise LibraError(f"{str(path.parent)!r} is a run of `{command}`, not a {what}.")
    if not needed <= given <= known:
        raise LibraError(f"{str(path)!r} is not the configuration of a {what} of this version of libra-gym.")
    return dict(settings)


def is_pretraining(path: Path) -> bool:
    """Whether a `config.json` is that of a run of `libra pretrain`."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(settings, dict) and "algo" not in settings and "dataset" in settings


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run, as they stand in its `config.json`."""

    algo: str
    preset: str
    seed: int
    device: str
    epochs: int
    bank: str
    """A registered name, or the absolute path of a file or feature directory."""
    fingerprint: str
    """Of the bank and those of `also`; a run goes on only with the banks it began with."""
    train_split: str
    validation_split: str
    quantizer: dict[str, Any]
    """Fitted to the training split alone."""
    task: dict[str, Any] | None
    """The scale; None for a one-step head."""
    num_envs: int
    env: dict[str, Any]
    """Arguments of the environment besides the bank."""
    settings: dict[str, Any]
    """Every argument of the algorithm."""
    about: dict[str, Any]
    """Where the features come from; goes into the saved models."""
    checkpoint_minutes: float
    sb3_zip: bool
    wandb: str | None
    """The id of the W&B run."""
    also: tuple[str, ...] = ()
    """More banks, by name or absolute path, whose training images are learnt from too."""
    init: str | None = None
    """The finished counter that an agent starts from: a released name, or an absolute path."""
    matmul: str = "highest"
    """How exact the products of matrices are: a precision of `torch.set_float32_matmul_precision`."""

    @property
    def algorithm(self) -> Algorithm:
        """The line of the algorithm table."""
        return find_algorithm(self.algo)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)

    @classmethod
    def load(cls, path: Path) -> RunConfig:
        """Read a `config.json`."""
        settings = read_config(path, cls, "run of `libra train`")
        _drop_idle(settings)
        return cls(**{**settings, "also": tuple(settings.get("also", ()))})

    def open_bank(self) -> tuple[FeatureBank, FeatureBank]:
        """The training and the validation bank, after a check that they are still the same."""
        bank = load_bank(self.bank)
        more = _training_parts(self.also, self.train_split, bank)
        if _fingerprints(bank, more) != self.fingerprint:
            names = ", ".join(repr(name) for name in (self.bank, *self.also))
            raise LibraError(f"Bank {names} has changed since the run began; bring it back, or start a new run.")
        training, quantizer = bank.split(self.train_split).join(*more), Quantizer.from_dict(self.quantizer)
        validation = bank.split(self.validation_split).wholes()  # views are to learn from
        return _learnt_from(training, quantizer), validation.with_quantizer(quantizer)


def _drop_idle(config: dict[str, Any]) -> None:
    """Take out of an earlier version's configuration what did nothing then and is refused now."""
    rewards = config["env"].get("rewards") or {}
    for name in PAPERS_ALONE if rewards.get("shape") == "error" else ("error_offset",):
        rewards.pop(name, None)
    if config["settings"].get("gamma") == 0.0:
        config["settings"] |= {name: usual for name, usual in LOOKS_AHEAD.items() if name in config["settings"]}


def plan(
    bank: str,
    algo: str = "libra_dqn",
    preset: str = "default",
    *,
    seed: int = 0,
    device: str = "auto",
    epochs: int | None = None,
    changes: Mapping[str, Any] | None = None,
    train_split: str = "train",
    validation_split: str = "validation",
    checkpoint_minutes: float = 5.0,
    sb3_zip: bool = False,
    wandb: bool = False,
    also: Sequence[str] = (),
    init: str | None = None,
    matmul: str = "highest",
) -> RunConfig:
    """Resolve a run: preset and changes to settings, bank to fingerprint and quantizer, environment to task."""
    algorithm = find_algorithm(algo)
    if init is not None and algorithm.kind != "libra":
        raise LibraError(f"{algo!r} cannot start from a finished counter; leave --init out, or take libra_dqn.")
    if algorithm.kind == "libra" and (idle := sorted(set(ELSEWHERE) & set(changes or ()))):
        raise LibraError(
            f"{idle[0]!r} is of SB3's own loop, which {algo!r} does not use on the scales; leave it out (see "
            "update_every, syncs and epsilon_start)."
        )
    settings = algorithm.preset(preset, changes)
    opened = load_bank(bank)
    more = _training_parts(also, train_split, opened)
    own = opened.split(train_split)
    _keep_apart(opened.split(validation_split), own, more)
    training = own.join(*more)
    training = _learnt_from(training, fit_quantizer(training))
    asked = _epochs(settings.pop("epochs"), settings.pop("weighings", None), len(training))
    num_envs, env = settings.pop("num_envs", 0), settings.pop("env", None) or {}
    if sb3_zip and algorithm.kind == "head":
        raise LibraError(f"{algo!r} is no algorithm of Stable-Baselines3 and has no zip; leave out --sb3-zip.")
    if algorithm.kind == "libra":
        settings["policy_kwargs"] = _with_network(settings.get("policy_kwargs") or {})
    config = RunConfig(
        algo=algo,
        preset=preset,
        seed=seed,
        device=str(check_device(device)),
        epochs=asked if epochs is None else epochs,
        bank=place(bank),
        fingerprint=_fingerprints(opened, more),
        train_split=train_split,
        validation_split=validation_split,
        quantizer=training.quantizer.to_dict(),
        task=None if algorithm.kind == "head" else _task(training, num_envs, env),
        num_envs=num_envs,
        env=env,
        settings=settings,
        about=_about(own, more) | ({} if init is None else {"init": Path(init).name}),
        checkpoint_minutes=checkpoint_minutes,
        sb3_zip=sb3_zip,
        wandb=secrets.token_hex(4) if wandb else None,
        also=tuple(place(name) for name in also),
        init=init if init is None or init in RELEASED else str(Path(init).resolve()),
        matmul=matmul,
    )
    if init is not None:
        _check_init(config, training.channels)
    if not isinstance(config.epochs, int) or config.epochs < 1:
        raise LibraError(f"epochs is {config.epochs}, but a run needs at least 1.")
    return config


def _check_init(config: RunConfig, channels: int) -> None:
    """Refuse a counter that the agent cannot start from."""
    from agents.libra_dqn.learner import check_start
    from experiments.runs.counter import open_weigher

    assert config.init is not None
    assert config.task is not None
    task = WeighingTask.from_dict(config.task)
    network = NetworkSettings(channels, task.max_steps, task.num_actions, **config.settings["policy_kwargs"]["network"])
    check_start(open_weigher(config.init), network, task)


def _keep_apart(validation: FeatureBank, own: FeatureBank, more: Sequence[FeatureBank]) -> None:
    """Refuse to choose a model by a photo that it learns from."""
    names = {image.photo for image in validation.images} & {image.photo for image in own.images}
    found = [(own, names | _also_in(validation, own)), *((bank, _also_in(validation, bank)) for bank in more)]
    for bank, common in found:
        if common:
            raise LibraError(
                f"{min(common)!r} of bank {bank.name!r} is learnt from and judged by; take splits that have no photo "
                "in common."
            )


def _also_in(judged: FeatureBank, other: FeatureBank) -> set[str]:
    """The photos of another bank, by name, that are to be judged.

    Photos of two folders may have the same names, and a photo may have two. So they are told by their files where both
    banks know those, and otherwise by their names if both are of one data set.
    """
    names, theirs = ({image.photo for image in bank.images} for bank in (judged, other))
    files, other_files = (bank.meta.get("files", {}) for bank in (judged, other))
    if files.keys() >= names and other_files.keys() >= theirs:
        hashes = {files[name] for name in names}
        return {name for name in theirs if other_files[name] in hashes}
    dataset = judged.meta.get("dataset")
    return names & theirs if dataset is not None and other.meta.get("dataset") == dataset else set()


def place(bank: str) -> str:
    """A registered name, or the absolute path of a file or directory."""
    return bank if bank in bank_names() else str(Path(bank).resolve())


def _training_parts(banks: Sequence[str], split: str, first: FeatureBank) -> list[FeatureBank]:
    """Of each bank the run's training split; where it has none of that name, as a whole set beside a fold, its own.

    Photos that the split leaves out by name are left out of other banks of the same data set too.
    """
    whole, names = left_out(split)
    dataset = first.meta.get("dataset")
    found = []
    for bank in map(load_bank, banks):
        part = _training_part(bank, whole)
        if dataset is not None and bank.meta.get("dataset") == dataset:
            images = enumerate(part.images)
            part = part.select(i for i, image in images if not any(goes_by(image.photo, name) for name in names))
        found.append(part)
    return found


def _training_part(bank: FeatureBank, split: str) -> FeatureBank:
    try:
        return bank.split(split)
    except LibraError:
        return bank.split("train")


def _epochs(epochs: int, weighings: int | None, patches: int) -> int:
    """A preset's epochs; more where the bank is so small that they would be fewer than its `weighings`."""
    return epochs if weighings is None else max(epochs, round(weighings / patches))


def fit_quantizer(training: FeatureBank) -> Quantizer:
    """Intervals and bin means of the training patches alone; C is as large as they need.

    A bank with other intervals than the appendix's keeps its edges.
    """
    counts = training.counts.cpu().numpy()
    edges = training.quantizer.edges
    if len(edges) > 0 and np.allclose(edges, Quantizer.log(len(edges) + 1).edges):
        return Quantizer.fit_log(counts, readout="mean")
    return training.quantizer.with_means(counts)


def _learnt_from(training: FeatureBank, quantizer: Quantizer) -> FeatureBank:
    """What a run learns from, which alone decides how much its scale can hold."""
    return replace(training.with_quantizer(quantizer), fullest=float(training.counts.max()))


def _fingerprints(bank: FeatureBank, more: Sequence[FeatureBank]) -> str:
    """Of all that a run learns from and is judged by."""
    return "+".join(each.fingerprint() for each in (bank, *more))


def _task(training: FeatureBank, num_envs: int, env: dict[str, Any]) -> dict[str, Any]:
    from agents import make_vec_env

    try:
        scales = make_vec_env(num_envs=num_envs, bank=training, split=None, **env)
    except (TypeError, gym.error.Error) as error:
        raise LibraError(f"The environment cannot be made with {env!r} ({error}).") from None
    task: dict[str, Any] = json.loads(json.dumps(scales.task.to_dict()))
    return task


def _about(bank: FeatureBank, more: Sequence[FeatureBank]) -> dict[str, Any]:
    """Where the bank's features come from, as far as it knows."""
    known = ("dataset", "backbone", "weights", "kernel", "scale")
    about: dict[str, Any] = {key: bank.meta[key] for key in known if key in bank.meta}
    about |= reduce(Kind.join, [_kind(each) for each in (bank, *more)]).to_dict()
    if "backbone" in about:
        from libra_gym.features.build import PREPROCESSING

        about["preprocessing"] = bank.meta.get("preprocessing", PREPROCESSING)
    if more:
        about["also"] = [each.name for each in more]
    return {"bank": bank.name, **about}


def _kind(bank: FeatureBank) -> Kind:
    """The range of a bank's photos: of those that are in this split of it."""
    known: dict[str, tuple[int, int, int]] = bank.meta.get("photos", {})
    names = {image.photo for image in bank.images}
    if not known.keys() >= names:  # a bank of an earlier version, or of several
        return Kind.read(bank.meta)
    return Kind.of(((height, width), people) for name, (height, width, people) in known.items() if name in names)


def _with_network(policy_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The network in full; its input and output are the bank's and the task's."""
    sizes = {"channels", "steps", "actions"}
    try:
        network = NetworkSettings(**(policy_kwargs.get("network") or {})).to_dict()
    except TypeError:
        known = ", ".join(field.name for field in fields(NetworkSettings) if field.name not in sizes)
        raise LibraError(f"policy_kwargs.network knows only: {known}.") from None
    return {**policy_kwargs, "network": {key: value for key, value in network.items() if key not in sizes}}


def check_device(name: str) -> torch.device:
    """The device of this name, if it is there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        known = "auto, cpu or cuda" if torch.cuda.is_available() else "auto or cpu"
        raise LibraError(f"There is no device {name!r} here; take {known}.") from None
    return device
