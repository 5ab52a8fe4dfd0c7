"""A pre-training from its first epoch, or from its checkpoint, to its last."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from rich.console import Console

from agents.callbacks import figures
from agents.pretraining import Pretrainer, PretrainSettings
from agents.pretraining.settings import Readout
from experiments.runs.checkpoint import Checkpoint
from experiments.runs.config import read_config
from experiments.runs.directory import RunDirectory
from experiments.runs.display import Display
from experiments.runs.training import Interrupt, Trained
from experiments.tracking import EPOCH, WandbWriter, make_logger
from libra_gym.backbones import load_backbone
from libra_gym.datasets import Photo, open_dataset
from libra_gym.errors import LibraError
from libra_gym.features.storage import sha256
from libra_gym.metrics import Score

CHECKPOINT_SECONDS = 300.0
"""How much of a long epoch may be lost."""


@dataclass(frozen=True)
class PretrainConfig:
    """All settings of a pre-training, as they stand in its `config.json`."""

    settings: dict[str, Any]
    preset: str
    dataset: str
    root: str | None
    train_split: str
    validation_split: str
    backbone: str
    weights: str
    """Where the backbone begins: a file, or `imagenet`."""
    init: str | None
    """A counting checkpoint whose head goes on; `weights` is the same file, unless a scale gets another backbone."""
    seed: int
    device: str
    cache: str
    cache_dir: str
    cache_gb: float
    workers: int
    wandb: str | None
    """The id of the W&B run."""
    precision: str = "auto"
    also: tuple[tuple[str, str, str], ...] = ()
    """Name, split and directory of each other data set that is learnt from too."""
    photos: str = ""
    """The `photos_hash` of what is learnt from and judged by; empty in runs of earlier versions."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)

    @classmethod
    def load(cls, path: Path) -> PretrainConfig:
        """Read a `config.json`."""
        settings = read_config(path, cls, "run of `libra pretrain`")
        return cls(**{**settings, "also": tuple(tuple(each) for each in settings.get("also", ()))})

    def check_photos(self, found: str) -> None:
        """Refuse photos other than those that the run began with: some to judge by may have been learnt from."""
        if self.photos and self.photos != found:
            raise LibraError(
                "The photos or their dots have changed since the run began; bring them back as they were, or start a "
                "new run."
            )


def photos_hash(training: Iterable[Photo], validation: Iterable[Photo]) -> str:
    """A hash of which photos are learnt from and which are judged by: their names, their sizes in bytes, their dots."""

    def about(photo: Photo) -> list[str | int]:
        size = photo.path.stat().st_size if photo.path.is_file() else 0  # one that is drawn has no file
        return [photo.name, size, sha256(photo.labels) if photo.labels.is_file() else ""]

    both = [sorted(about(photo) for photo in photos) for photos in (training, validation)]
    return hashlib.sha256(json.dumps(both).encode()).hexdigest()


def new_wandb_id() -> str:
    """The id of a new W&B run."""
    return secrets.token_hex(4)


def make_accelerator(device: str, accumulate: int, precision: str = "auto") -> Accelerator:
    """Devices and precision: `auto` is half precision on CUDA and single on a CPU, where half may not even run."""
    import torch

    cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
    if device not in ("auto", "cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise LibraError(f"There is no device {device!r} on this machine; take auto or cpu.")
    if precision == "auto":
        # Older GPUs can do bf16 too, but only by emulation, which is slow.
        precision = "fp32" if cpu else ("bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16")
    if precision == "fp16" and cpu:
        raise LibraError("A CPU has no training in fp16; take --precision bf16 or fp32.")
    mixed = "no" if precision == "fp32" else precision
    return Accelerator(cpu=cpu, mixed_precision=mixed, gradient_accumulation_steps=accumulate)


def prepare(config: PretrainConfig, accelerator: Accelerator, console: Console, home: Path) -> Pretrainer:
    """Read photos and weights; what is wrong with the settings shows here, before anything is written.

    A cache directory that is not absolute is in `home`, the run's directory, which may have been moved.
    """
    with console.status("reading photos and dots"):
        dataset = open_dataset(config.dataset, None if config.root is None else Path(config.root))
        return Pretrainer(
            PretrainSettings.from_dict(config.settings),
            load_backbone(config.backbone, config.weights),
            dataset,
            split=config.train_split,
            validation=config.validation_split,
            also=[(open_dataset(name, Path(directory)), split) for name, split, directory in config.also],
            seed=config.seed,
            init=None if config.init is None else Path(config.init),
            one_step=Path(config.weights) if Path(config.weights).is_file() else None,
            where=config.cache,  # type: ignore[arg-type]  # the command checks it
            cache_directory=home / config.cache_dir,
            cache_bytes=config.cache_gb * 1e9,
            accelerator=accelerator,
            workers=config.workers,
        )


def pretrain(run: RunDirectory, config: PretrainConfig, trainer: Pretrainer, console: Console) -> Trained:
    """Train from the run's checkpoint, or from the beginning where there is none.

    Each process of a distributed training calls this; the first of them logs and saves.
    """
    checkpoint = Checkpoint.load(run.checkpoint_path)
    if not trainer.accelerator.is_main_process:
        with Interrupt().listening() as interrupt:
            return _Loop(trainer, config, checkpoint).follow(interrupt)
    last_epoch = -1 if checkpoint is None else checkpoint.numbers["epoch"]
    wandb = None if config.wandb is None else WandbWriter(config.wandb, run.path, config.to_dict())
    logger = make_logger(run.progress_path, run.tensorboard_path, wandb, last_epoch)
    try:
        with Interrupt().listening() as interrupt, Display(console, trainer.settings.epochs, "crops") as display:
            loop = _Loop(trainer, config, checkpoint)
            trained = loop.lead(run, logger, display, interrupt)
        if wandb is not None:
            wandb.keep_model(
                [run.model_path("best"), run.config_path], {"epoch": loop.best_epoch, "mae": loop.best_mae}
            )
    finally:
        logger.close()
    return trained


class _Loop:
    """Epochs, and what is done between them."""

    def __init__(self, trainer: Pretrainer, config: PretrainConfig, checkpoint: Checkpoint | None) -> None:
        self.trainer, self.config = trainer, config
        self.best_epoch, self.best_mae = 0, math.inf
        self.fresh = checkpoint is None
        if checkpoint is not None:
            numbers = checkpoint.numbers
            trainer.load_state(checkpoint.tensors, numbers["trainer"])
            self.best_epoch, self.best_mae = numbers["best_epoch"], numbers["best_mae"]
            checkpoint.restore_generators()

    @property
    def epochs(self) -> int:
        """How many there are to be."""
        return self.trainer.settings.epochs

    def follow(self, interrupt: Interrupt) -> Trained:
        """The epochs of a process that only computes."""
        if self.fresh:
            self.trainer.evaluate()
        while self._goes_on(interrupt):
            if self.trainer.learn_epoch(lambda *_: not interrupt.asked) is None:
                break
            self.trainer.evaluate()
        return self._trained()

    def lead(self, run: RunDirectory, logger: Any, display: Display, interrupt: Interrupt) -> Trained:
        """The epochs of the process that logs and saves; the beginning is judged too, as epoch 0."""
        trainer = self.trainer
        crops = len(trainer.crops)
        done = trainer.epoch + trainer.batch / len(trainer.loader)
        display.begin(done, round(done * crops))
        if self.fresh:
            self._finish_epoch(run, logger, display, None)

        saved = time.monotonic()

        def progress(share: float, loss: float) -> bool:
            nonlocal saved
            if display.due:
                done = trainer.epoch + share
                display.update(done, round(done * crops), None, loss)
            if time.monotonic() - saved >= CHECKPOINT_SECONDS:
                self._save(run)
                saved = time.monotonic()
            return not interrupt.asked

        while self._goes_on(interrupt):
            loss = trainer.learn_epoch(progress)
            if loss is None:
                self._save(run)
                break
            self._finish_epoch(run, logger, display, loss)
        return self._trained()

    def _goes_on(self, interrupt: Interrupt) -> bool:
        return self.trainer.epoch < self.epochs and self.trainer.agree(not interrupt.asked)

    def _finish_epoch(self, run: RunDirectory, logger: Any, display: Display, loss: float | None) -> None:
        trainer, readout = self.trainer, self.trainer.settings.readout
        scores = trainer.evaluate()
        chosen: Readout = readout if readout in scores else next(iter(scores))
        mae = scores[chosen].mae
        improved = mae < self.best_mae
        if improved:
            self.best_epoch, self.best_mae = trainer.epoch, mae
        about = {"validation": _validation(trainer.epoch, chosen, scores), "data": _data(self.config)}
        for which in ("last", "best") if improved else ("last",):
            trainer.save_weights(run.model_path(which), about)
        logger.record(EPOCH, trainer.epoch)
        logger.record("train/loss", math.nan if loss is None else loss)
        logger.record("train/updates", trainer.updates)
        for key, value in figures(scores[chosen]).items():
            logger.record(f"validation/{key}", value)
        for name, score in scores.items():
            logger.record(f"validation/mae_{name}", score.mae)
            logger.record(f"validation/rmse_{name}", score.rmse)
        logger.dump(trainer.epoch * len(trainer.crops))
        steps = trainer.epoch * len(trainer.crops)
        display.epoch(trainer.epoch, steps, None, loss, mae, improved)
        self._save(run)

    def _save(self, run: RunDirectory) -> None:
        tensors, numbers = self.trainer.state()
        judged = {"epoch": self.trainer.epoch, "best_epoch": self.best_epoch, "best_mae": self.best_mae}
        Checkpoint({**judged, "trainer": numbers}, tensors).save(run.checkpoint_path)

    def _trained(self) -> Trained:
        self.trainer.accelerator.wait_for_everyone()  # until all is saved
        finished = self.trainer.epoch >= self.epochs
        return Trained(self.trainer.epoch, self.best_epoch, self.best_mae, finished)


def _validation(epoch: int, readout: str, scores: Mapping[Readout, Score]) -> dict[str, Any]:
    return {"epoch": epoch, "readout": readout, **{name: figures(score) for name, score in scores.items()}}


def _data(config: PretrainConfig) -> dict[str, Any]:
    learnt = {"dataset": config.dataset, "train": config.train_split, "validation": config.validation_split}
    others = [f"{name}:{split}" for name, split, _ in config.also]
    return {**learnt, "also": others} if others else learnt
