"""From what a table wants to jobs: features → pre-training → heads and agents → evaluation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from agents.pretraining import PretrainSettings, pretrain_settings
from agents.registry import find_algorithm
from experiments.reproduce import commands
from experiments.reproduce.jobs import Job
from libra_gym.backbones import check_weights, learnt_scale
from libra_gym.datasets import CrowdDataset, open_dataset
from libra_gym.errors import LibraError
from libra_gym.features.storage import sha256

Budget: TypeAlias = Literal["small", "full"]
Preset: TypeAlias = Literal["default", "paper"]

FOLDS = {"ucf_cc_50": 5}
"""Data sets that are judged by cross-validation."""

ROLES = ("train", "validation", "test")

PATCHES = 550
"""About how many a photo of ShanghaiTech A has, for estimates of time."""

SMALL_EPOCHS = {"head": 3, "pretrain": 2}
"""Epochs of a small budget; every agent has one."""


@dataclass(frozen=True)
class Recipe:
    """How a head or an agent is trained."""

    algo: str
    preset: str = "default"
    changes: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    """Of a full budget; None takes the preset's own."""

    def but(self, **changes: Any) -> Recipe:
        """The same with settings changed; a double underscore stands for a dot."""
        return replace(self, changes={**self.changes, **{k.replace("__", "."): v for k, v in changes.items()}})


@dataclass(frozen=True)
class Request:
    """What the user asked for; all paths are absolute."""

    root: Path
    out: Path
    weights: str
    """A file of ImageNet weights, or a word that `libra features` knows."""
    backbones: Mapping[str, Path] = field(default_factory=dict)
    """Fine-tuned backbones by the pre-training they stand for; see `Planner.eyes`."""
    budget: Budget = "full"
    seeds: int | None = None
    precision: Literal["fp32", "bf16"] | None = None
    """In what backbones learn and look; None leaves it to their commands."""
    matmul: str | None = None
    """How exact products of matrices are where heads and agents learn; None leaves it to their command."""
    dataset: str = "shanghaitech_a"
    """Where the tables are made that the paper made on one data set."""
    preset: Preset = "default"
    """How LibraNet is trained: as we do it, or by the paper's own settings."""

    def __post_init__(self) -> None:
        if self.matmul == "highest":  # as without: it is the same job
            object.__setattr__(self, "matmul", None)

    @property
    def places(self) -> dict[str, str]:
        """Paths of this machine, and what stands for them in a report."""
        files = [Path(self.weights).resolve(), *self.backbones.values()]
        own = {self.out: "OUT", self.root: "ROOT"}
        return {str(place): name for place, name in own.items() if place != Path(place.anchor)} | {
            str(file): file.name for file in files
        }


@dataclass(frozen=True)
class Splits:
    """Where a model learns, is chosen, and is judged."""

    train: str
    validation: str
    judged: str
    folded: bool = False
    """Whether the photos are divided in other ways too; then one bank of all of them serves every division."""

    @property
    def learning(self) -> str:
        """The photos that a model may see."""
        return f"{self.train}+{self.validation}"

    @property
    def fold(self) -> str:
        """The name of this division of the photos, of which there are several in cross-validation."""
        return self.train.partition("-")[0]

    @property
    def bank(self) -> str:
        """The photos of the bank to learn from."""
        return "all" if self.folded else self.learning


@dataclass(frozen=True)
class Eyes:
    """Weights of a backbone: a file, or what a pre-training will leave."""

    name: str
    weights: str
    identity: str | None
    """Of a file's content; None for a pre-training, whose key says it all."""
    made_by: Job | None = None
    scale: float = 1.0
    """How many times larger than they are it looks at photos: as it learnt."""


class Planner:
    """Makes jobs. What cannot be planned is a LibraError whose sentence goes into the table in place of a number."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.notes: dict[str, None] = {}
        """What a reader of the table must know, in order and each once."""
        self._sources: dict[str, CrowdDataset] = {}
        self._listed: dict[tuple[str, str], list[tuple[str, int, int]]] = {}

    @cached_property
    def cache(self) -> Path:
        """The directory of all jobs."""
        return self.request.out / "cache"

    def note(self, sentence: str) -> None:
        """Add to the table's notes."""
        self.notes[sentence] = None

    # --------------------------------------------------------------------------------------------------------- data

    def data(self, name: str) -> CrowdDataset:
        """A data set below the root."""
        if name not in self._sources:
            try:
                self._sources[name] = open_dataset(name, self.request.root)
            except LibraError as error:
                missing = f"{name}: not found under {self.request.root}"
                raise LibraError(str(error) if name == "folder" else missing) from None
            for sentence in self._sources[name].missing():
                self.note(f"{name} is not whole: {sentence.partition(' photos: ')[0]} photos.")
        return self._sources[name]

    def splits(self, name: str) -> list[Splits]:
        """The splits of a data set, one entry for each fold of cross-validation."""
        if name in FOLDS:
            self.note(
                f"{name}: the mean over {FOLDS[name]} folds of each fold's figure, by the last epoch, since few "
                f"validation photos are left to choose one by. There are no official folds; ours are in "
                f"libra_gym/datasets/{name}.py."
            )
            return [Splits(*(f"fold{k}-{role}" for role in ROLES), folded=True) for k in range(1, FOLDS[name] + 1)]
        return [Splits("train", "validation", self.judged(name))]

    def judged(self, name: str) -> str:
        """The official test split where it is at hand, else the validation split."""
        if name in FOLDS or "test" in self.data(name).present():
            return "test"
        self.note(
            f"{name}: the official test split is not under {self.request.root}, so its figures are of the validation "
            "split, by which the models were chosen; they are not comparable with the paper's."
        )
        return "validation"

    def _photos(self, name: str, split: str) -> int:
        return len(self._files(name, split))

    def _files(self, name: str, split: str) -> list[tuple[str, int, int]]:
        """Name, size of photo and size of labels of each photo: enough to notice that a data set was changed."""
        if (name, split) not in self._listed:
            try:
                self._listed[name, split] = [
                    (photo.name, photo.path.stat().st_size, photo.labels.stat().st_size)
                    for photo in self.data(name).photos(split)
                ]
            except OSError as error:
                raise LibraError(f"{name}: {error.filename} cannot be read ({error.strerror})") from None
        return self._listed[name, split]

    def _contents(self, name: str, split: str) -> str:
        return hashlib.sha256(json.dumps(self._files(name, split)).encode()).hexdigest()

    # --------------------------------------------------------------------------------------------------------- eyes

    def imagenet(self) -> Eyes:
        """The backbone as it comes."""
        return Eyes("ImageNet", *_weights(self.request.weights))

    def eyes(self, method: str, dataset: str, splits: Splits) -> Eyes:
        """A backbone that was fine-tuned for counting: the user's file if there is one, else a pre-training.

        `--backbone METHOD:DATASET:FOLD=FILE` and `METHOD:DATASET=FILE` are for one pre-training, `METHOD=FILE` for all
        of a method, and `FILE` for all that the paper trained as BCNet.
        """
        given = self.request.backbones
        one = f"{method}:{dataset}:{splits.fold}"
        file = given.get(one) or given.get(f"{method}:{dataset}") or given.get(method)
        if file is not None:
            seen = f"{dataset} {splits.fold}" if one in given else dataset
            scale = learnt_scale(file)
            larger = "" if scale == 1.0 else f", which looks at photos {scale:g} times as large as they are"
            self.note(f"{method} features of {seen} come from the given backbone {file.name}{larger}.")
            return Eyes(method, *_weights(str(file)), scale=scale)
        job = self.pretrain(method, dataset, splits)
        return Eyes(method, str(commands.pretrained_file(job.output)), None, job, _pretraining(method, None).scale)

    # --------------------------------------------------------------------------------------------------------- jobs

    @property
    def _precision(self) -> dict[str, str]:
        """What of the key depends on it."""
        return {} if self.request.precision is None else {"precision": self.request.precision}

    def pretrain(self, method: str, dataset: str, splits: Splits) -> Job:
        """Fine-tune the backbone as a counter of its own."""
        epochs = SMALL_EPOCHS["pretrain"] if self.request.budget == "small" else None
        settings = _pretraining(method, epochs)
        weights, identity = _weights(self.request.weights)
        job = Job(
            "pretrain",
            f"pre-train {method}, {dataset} {splits.train}",
            {
                "settings": settings.to_dict(),
                "dataset": dataset,
                "splits": [splits.train, splits.validation],
                "photos": self._contents(dataset, splits.learning),
                "weights": identity,
                **self._precision,
            },
            self.cache,
            unit="pretrain",
            units=self._photos(dataset, splits.train) * settings.epochs,
        )
        pair = (splits.train, splits.validation)
        call = commands.pretrain(
            method,
            dataset,
            self.request.root,
            weights,
            job.output,
            splits=pair,
            epochs=epochs,
            precision=self.request.precision,
        )
        return replace(job, begin=call, resume=commands.resume("pretrain", job.output), mark="config.json")

    def features(self, dataset: str, split: str, eyes: Eyes) -> Job:
        """What a backbone sees in the photos of a split."""
        job = Job(
            "features",
            f"features {eyes.name}, {dataset} {split}",
            {
                "dataset": dataset,
                "split": split,
                "photos": self._contents(dataset, split),
                "backbone": "vgg16",
                "weights": eyes.identity,
                **({} if eyes.scale == 1.0 else {"scale": eyes.scale}),
                **(self._precision if self.request.precision == "bf16" else {}),  # it is in fp32 if nothing is said
            },
            self.cache,
            () if eyes.made_by is None else (eyes.made_by,),
            unit="features",
            units=self._photos(dataset, split),
        )
        call = commands.features(
            dataset,
            self.request.root,
            split,
            eyes.weights,
            job.output,
            scale=eyes.scale,
            precision=self.request.precision,
        )
        return replace(job, begin=call, resume=call, mark="manifest.json")

    def train(self, dataset: str, splits: Splits, eyes: Eyes, recipe: Recipe, seed: int) -> Job:
        """A head or an agent on the features of the training photos."""
        bank = self.features(dataset, splits.bank, eyes)
        algorithm = find_algorithm(recipe.algo)
        resolved = json.loads(_resolved(recipe.algo, recipe.preset, json.dumps(dict(recipe.changes))))
        epochs = recipe.epochs
        if self.request.budget == "small":
            epochs = SMALL_EPOCHS.get(algorithm.kind, 1)
        if epochs is not None:  # as with --epochs, however small the bank is
            resolved |= {"epochs": epochs, "weighings": None}
        photos = self._photos(dataset, splits.train)
        job = Job(
            "train",
            f"{recipe.algo} {_changes(recipe)}on {eyes.name}, {dataset} {splits.train}, seed {seed}",
            {
                "algo": recipe.algo,
                "settings": resolved,
                "seed": seed,
                "splits": [splits.train, splits.validation],
                **({} if self.request.matmul is None else {"matmul": self.request.matmul}),
            },
            self.cache,
            (bank,),
            unit="head" if algorithm.kind == "head" else "agent",
            units=max(photos * resolved["epochs"], (resolved.get("weighings") or 0) / PATCHES),
        )
        pair = (splits.train, splits.validation)
        call = commands.train(
            bank.output,
            recipe.algo,
            recipe.preset,
            recipe.changes,
            job.output,
            seed=seed,
            splits=pair,
            epochs=epochs,
            matmul=self.request.matmul,
        )
        return replace(job, begin=call, resume=commands.resume("train", job.output), mark="config.json")

    def evaluate(self, run: Job, bank: Job, dataset: str, split: str, model: commands.Model = "best") -> Job:
        """The errors of a run's model on a split."""
        job = Job(
            "evaluate",
            f"evaluate on {dataset} {split}: {run.title}",
            {"split": split} if model == "best" else {"split": split, "model": model},
            self.cache,
            (run, bank),
            unit="evaluate",
            units=self._photos(dataset, split),
        )
        return replace(job, begin=commands.evaluate(run.output, bank.output, split, job.output, model))

    def speed(self) -> Job:
        """How long a photo takes on this machine."""
        weights, identity = _weights(self.request.weights)
        job = Job("speed", "time a photo of 1080×720", {"weights": identity}, self.cache, unit="speed", units=1)
        return replace(job, begin=commands.speed(weights, job.output))

    # --------------------------------------------------------------------------------------------------------- runs

    def runs(
        self, recipe: Recipe, dataset: str | None = None, method: str | None = "bcnet", target: str | None = None
    ) -> tuple[tuple[Job, ...], ...]:
        """The evaluations of a recipe: for each seed, one for each fold.

        Args:
            recipe: how to train.
            dataset: where to train; None is where the request says.
            method: the pre-training of the backbone; None leaves it as ImageNet made it.
            target: another data set to be judged on.
        """
        dataset = dataset or self.request.dataset
        evaluations = []
        for seed in range(self.request.seeds or 1):
            folds = []
            for splits in self.splits(dataset):
                eyes = self.imagenet() if method is None else self.eyes(method, dataset, splits)
                run = self.train(dataset, splits, eyes, recipe, seed)
                where, judged = (dataset, splits.judged) if target is None else (target, self.judged(target))
                own = where == dataset and (splits.folded or judged == splits.validation)
                bank = run.needs[0] if own else self.features(where, judged, eyes)
                # A fold leaves too few photos to choose an epoch by.
                folds.append(self.evaluate(run, bank, where, judged, "last" if splits.folded else "best"))
            evaluations.append(tuple(folds))
        return tuple(evaluations)


@cache
def _resolved(algo: str, preset: str, changes: str) -> str:
    """All settings of a head or an agent, as JSON; kept, because reading recipes takes longer than all else here."""
    return json.dumps(find_algorithm(algo).preset(preset, json.loads(changes)), default=str)


@cache
def _pretraining(method: str, epochs: int | None) -> PretrainSettings:
    return pretrain_settings(method, changes=None if epochs is None else {"epochs": epochs})


@cache
def _weights(given: str) -> tuple[str, str]:
    """The weights as a command takes them, and what identifies them."""
    if given in ("imagenet", "random"):
        return given, given
    path = Path(given)
    if not path.is_file():
        raise LibraError(f"There is no file {given!r} with a backbone's weights.")
    check_weights("vgg16", path)  # a file that is no such weights is told of now, and not by the first job
    return str(path.resolve()), sha256(path)


def _changes(recipe: Recipe) -> str:
    """What sets the recipe apart, for titles."""
    preset = "" if recipe.preset == Recipe.preset else f"{recipe.preset} "
    return preset + "".join(f"{key.rpartition('.')[2]}={value} " for key, value in recipe.changes.items())
