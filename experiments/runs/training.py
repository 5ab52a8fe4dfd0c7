"""Training: a run from its first epoch, or from its checkpoint, to its last."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
from rich.console import Console
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Figure, Logger

from agents import make_vec_env
from agents.callbacks import STEPS_PER_PATCH, EvaluationCallback, figures, has_learnt
from agents.heads import HeadSettings, HeadTrainer
from agents.libra_dqn import Learner, LibraDQN
from agents.registry import with_references
from experiments.runs.checkpoint import Checkpoint
from experiments.runs.config import RunConfig, check_device
from experiments.runs.counter import open_weigher
from experiments.runs.directory import RunDirectory, replacing
from experiments.runs.display import Display
from experiments.tracking import EPOCH, SECONDS, TRANSITIONS, WandbWriter, make_logger
from libra_gym.bank import FeatureBank
from libra_gym.errors import LibraError
from libra_gym.evaluation import Evaluation, Policy
from libra_gym.metrics import Score
from libra_gym.task import WeighingTask

_NEVER = 2**62
"""Epochs between SB3's own log rows: the run writes one itself when an epoch has been judged."""

PICTURE_SECONDS = 60.0
"""An epoch that is the best so far is pictured no sooner than this after the picture before; the last one always is."""


@dataclass(frozen=True)
class Trained:
    """How a training ended."""

    epochs: int
    best_epoch: int
    best_mae: float
    finished: bool
    """False where it was interrupted."""
    learnt: bool = True
    """False where the network had no update at all."""


class Interrupt:
    """Set by Ctrl-C, read between two blocks; a second Ctrl-C ends the program at once."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def listening(self) -> Iterator[Interrupt]:
        """Listen for Ctrl-C and for a polite request to end, as a cluster sends it."""
        if threading.current_thread() is not threading.main_thread():
            yield self  # only the main thread may listen
            return
        before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


def train(run: RunDirectory, config: RunConfig, console: Console) -> Trained:
    """Train from the run's checkpoint, or from the beginning where there is none."""
    check_device(config.device)  # a run may go on where there is no such device
    checkpoint = Checkpoint.load(run.checkpoint_path)
    last_epoch = 0 if checkpoint is None else checkpoint.numbers["epoch"]
    wandb = None if config.wandb is None else WandbWriter(config.wandb, run.path, config.to_dict())
    logger = make_logger(run.progress_path, run.tensorboard_path, wandb, last_epoch)
    go = _train_head if config.algorithm.kind == "head" else _train_agent
    try:
        with (
            Interrupt().listening() as interrupt,
            Display(console, config.epochs) as display,
            _matmul(config.matmul),
        ):
            trained = go(run, config, checkpoint, logger, display, interrupt)
        if wandb is not None and trained.best_epoch > 0:
            models = sorted(run.path.glob("best.*"))
            wandb.keep_model([*models, run.config_path], {"epoch": trained.best_epoch, "mae": trained.best_mae})
    finally:
        logger.close()
    return trained


@contextmanager
def _matmul(precision: str) -> Iterator[None]:
    """Multiply matrices as exactly as this says, for a time: it is a setting of the whole process."""
    if precision == "medium":  # else oneDNN keeps what it made for each size of batch: gigabytes, in a long run
        for cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
            os.environ.setdefault(cache, "16")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# -------------------------------------------------------------------------------------------------------------- agents


class RunCallback(EvaluationCallback):
    """Judges, logs, saves and shows an agent's run, and stops it when it is asked to."""

    def __init__(
        self,
        run: RunDirectory,
        config: RunConfig,
        bank: FeatureBank,
        display: Display,
        interrupt: Interrupt,
        epoch_steps: int | None,
    ) -> None:
        super().__init__(bank, epoch_steps=epoch_steps, about=config.about)
        self.run, self.config, self.display, self.interrupt = run, config, display, interrupt
        own = (".safetensors",) if epoch_steps is None else ()
        self._suffixes = own if own and not config.sb3_zip else (*own, ".zip")
        self._saved = self._pictured = self._began = time.monotonic()
        self._before = 0.0

    @property
    def done(self) -> float:
        """Epochs behind the run, with the part of the present one."""
        if self.epoch_steps is not None:
            return self.num_timesteps / self.epoch_steps
        learner = _learner(self.model)
        return learner.epoch + learner.cursor / len(learner.bank)

    @property
    def seconds(self) -> float:
        """What the run has taken so far, over all its sittings."""
        return self._before + time.monotonic() - self._began

    def _on_training_start(self) -> None:
        judged = self.epoch
        super()._on_training_start()
        self.display.begin(self.done, self.num_timesteps)
        if self.epoch > judged:  # SB3's zip is saved before the checkpoint, and a run may be killed between the two
            self._judge(self.epoch)

    def _on_step(self) -> bool:
        super()._on_step()
        if self.display.due:
            self.display.update(self.done, self.num_timesteps, *self._signs())
        # At an epoch's end the checkpoint waits for the judgement, which a run that goes on would miss otherwise.
        between = self.epoch_steps is not None or _learner(self.model).cursor > 0
        if between and time.monotonic() - self._saved >= 60 * self.config.checkpoint_minutes:
            self.save_checkpoint()
        return not self.interrupt.asked

    def on_epoch(self, evaluation: Evaluation, improved: bool) -> None:
        """Save, log, show; the checkpoint comes last, so that whatever it says is done is done."""
        self.display.epoch(self.epoch, self.num_timesteps, *self._signs(finished=True), evaluation.mae, improved)
        self._save("last")
        if improved:
            self._save("best")
        waited = time.monotonic() - self._pictured >= PICTURE_SECONDS
        if self.epoch >= self.config.epochs or (improved and waited):
            self._record_pictures()
        self.logger.record(SECONDS, round(self.seconds, 6))
        self.model.dump_logs()
        self.save_checkpoint()

    def save_checkpoint(self) -> None:
        """Write down where the run is."""
        numbers: dict[str, Any] = {
            "num_timesteps": self.num_timesteps,
            "episode_num": self.model._episode_num,
            "epoch": self.epoch,
            "best_epoch": self.best_epoch,
            "best_mae": self.best_mae,
            "seconds": self.seconds,
        }
        if self.epoch_steps is None:
            tensors, numbers["learner"] = _learner(self.model).state()
            Checkpoint(numbers, tensors).save(self.run.checkpoint_path)
        else:
            self._save("last")
            Checkpoint(numbers).save(self.run.checkpoint_path)
        self._saved = time.monotonic()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put the model where the checkpoint has it; an SB3 model comes out of its zip instead."""
        numbers = checkpoint.numbers
        self.epoch, self.best_epoch, self.best_mae = numbers["epoch"], numbers["best_epoch"], numbers["best_mae"]
        self._before, self._began = numbers.get("seconds", 0.0), time.monotonic()
        if self.epoch_steps is None:
            learner = _learner(self.model)
            learner.load_state(checkpoint.tensors, numbers["learner"])
            self.model.num_timesteps, self.model._episode_num = numbers["num_timesteps"], numbers["episode_num"]
            self.model._n_updates = learner.updates
            checkpoint.restore_generators()

    def _signs(self, *, finished: bool = False) -> tuple[float | None, float | None]:
        """ε and loss, where there are such."""
        if self.epoch_steps is None:
            learner = _learner(self.model)
            return (
                (learner.summary.epsilon, learner.summary.loss) if finished else (learner.epsilon, learner.loss_so_far)
            )
        return getattr(self.model, "exploration_rate", None), self.logger.name_to_value.get("train/loss")

    def _save(self, which: str) -> None:
        for suffix in self._suffixes:
            with replacing(self.run.model_path(which, suffix)) as path:
                self.save(path)

    def _record_pictures(self) -> None:
        from experiments.runs.pictures import draw

        assert self.config.task is not None
        task = WeighingTask.from_dict(self.config.task)
        policy: Policy = self.weigher or self.model
        for name, picture in draw(policy, self.bank, task).items():
            self.logger.record(f"pictures/{name}", Figure(picture, close=True), exclude="csv")
        self._pictured = time.monotonic()


def _learner(model: BaseAlgorithm) -> Learner:
    assert isinstance(model, LibraDQN)
    assert model.learner is not None
    return model.learner


def _train_agent(
    run: RunDirectory,
    config: RunConfig,
    checkpoint: Checkpoint | None,
    logger: Logger,
    display: Display,
    interrupt: Interrupt,
) -> Trained:
    training, validation = config.open_bank()
    own_loop = config.algorithm.kind == "libra"
    epoch_steps = None if own_loop else STEPS_PER_PATCH * len(training)
    callback = RunCallback(run, config, validation, display, interrupt, epoch_steps)
    model = _build(run, config, training, checkpoint)
    model.set_logger(logger)
    if checkpoint is not None:
        callback.init_callback(model)
        callback.restore(checkpoint)
    fresh = checkpoint is None
    if epoch_steps is None:
        assert isinstance(model, LibraDQN)
        model.learn_epochs(config.epochs, callback, log_interval=_NEVER, reset_num_timesteps=fresh)
    else:
        left = config.epochs * epoch_steps - model.num_timesteps
        model.learn(max(left, 0), callback, log_interval=_NEVER, reset_num_timesteps=fresh)
    finished = callback.epoch >= config.epochs
    if not finished:
        callback.save_checkpoint()
    return Trained(callback.epoch, callback.best_epoch, callback.best_mae, finished, has_learnt(model))


def _build(run: RunDirectory, config: RunConfig, training: FeatureBank, checkpoint: Checkpoint | None) -> BaseAlgorithm:
    """The model as it begins; an SB3 model that goes on comes out of its last zip."""
    env = make_vec_env(num_envs=config.num_envs, seed=config.seed, bank=training, split=None, **config.env)
    algorithm = config.algorithm
    cls = algorithm.load()
    model: BaseAlgorithm
    if checkpoint is not None and algorithm.kind == "sb3":
        model = cls.load(run.model_path("last", ".zip"), env=env, device=config.device)
        # SB3 keeps no generators: from the run's own seed, it would do what it did at its beginning once more.
        again = np.random.SeedSequence((config.seed, model.num_timesteps)).generate_state(1)[0]
        model.set_random_seed(int(again))
        return model
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in config.settings.items()}
    if isinstance(often := settings.get("train_freq"), tuple) and "episode" in often:
        raise LibraError(f"train_freq is {list(often)}, but the scales are many environments; give a number of steps.")
    try:
        model = cls(algorithm.policy, env, seed=config.seed, device=config.device, **with_references(settings))
    except LibraError:
        raise
    except (TypeError, ValueError, AssertionError) as error:
        raise LibraError(f"{config.algo!r} cannot be made with these settings ({error}).") from error
    if config.init is not None and checkpoint is None:
        assert isinstance(model, LibraDQN)
        model.start_from(open_weigher(config.init))
    return model


# --------------------------------------------------------------------------------------------------------------- heads


def _train_head(
    run: RunDirectory,
    config: RunConfig,
    checkpoint: Checkpoint | None,
    logger: Logger,
    display: Display,
    interrupt: Interrupt,
) -> Trained:
    """A one-step head learns in minutes, so it keeps no checkpoint: a run that goes on begins again."""
    training, validation = config.open_bank()
    settings = HeadSettings(**{**config.settings, "epochs": config.epochs, "seed": config.seed})
    trainer = HeadTrainer(training, settings, config.device)
    best_epoch, best_mae = 0, math.inf
    began = time.monotonic()
    display.begin(0.0, 0)
    while trainer.epoch < config.epochs and not interrupt.asked:
        loss = trainer.learn_epoch()
        score: Score = trainer.head.evaluate(validation)
        improved = score.mae < best_mae
        if improved:
            best_epoch, best_mae = trainer.epoch, score.mae
        about = {**config.about, "validation": {"epoch": trainer.epoch, **figures(score)}}
        for which in ("last", "best") if improved else ("last",):
            with replacing(run.model_path(which)) as path:
                trainer.head.save(path, about)
        steps = trainer.epoch * len(training)
        logger.record(EPOCH, trainer.epoch)
        logger.record("train/loss", loss)
        logger.record(TRANSITIONS, steps, exclude="tensorboard")
        logger.record(SECONDS, round(time.monotonic() - began, 6))
        for key, value in figures(score).items():
            logger.record(f"validation/{key}", value)
        logger.dump(steps)
        display.epoch(trainer.epoch, steps, None, loss, score.mae, improved)
        display.update(float(trainer.epoch), steps, None, loss)
    return Trained(trainer.epoch, best_epoch, best_mae, trainer.epoch >= config.epochs)
