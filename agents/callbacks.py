"""Judging an agent while it learns: counts of a validation bank after each epoch, and the best model kept (Sec. 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecMonitor, VecNormalize

from agents.libra_dqn import LibraDQN
from agents.vec_env import WeighingVecEnv
from libra_gym.bank import FeatureBank
from libra_gym.errors import LibraError
from libra_gym.evaluation import Evaluation, evaluate
from libra_gym.metrics import Score
from libra_gym.weigher import Weigher

STEPS_PER_PATCH = 5
"""About how many actions weigh a patch: turns epochs into time steps for algorithms that know no epochs."""


class EvaluationCallback(BaseCallback):
    """Counts the images of a validation bank after each epoch, logs the figures and keeps the model with the least MAE.

    Args:
        bank: what is counted; never what is learnt from. It is read with the quantizer that the model learns with.
        epoch_steps: time steps in an epoch. None is for `LibraDQN` on the scales, which knows its own epochs.
        best_path: where the best model goes, as a `Weigher` if it ends in `.safetensors`, else as SB3's own zip.
        about: what a saved `Weigher` tells of its origin; the validation figures are added.
    """

    def __init__(
        self,
        bank: FeatureBank,
        *,
        epoch_steps: int | None = None,
        best_path: str | Path | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if epoch_steps is not None and epoch_steps < 1:
            raise LibraError(f"epoch_steps is {epoch_steps}, but an epoch has at least 1 time step.")
        self.bank = bank
        self.epoch_steps = epoch_steps
        self.best_path = best_path
        self.about = about
        self.epoch = 0
        self.best_epoch = 0
        self.best_mae = math.inf
        self.weigher: Weigher | None = None
        """The model that was judged last, if it is a `LibraDQN`; its network is the agent's own, which learns on."""

    def _on_training_start(self) -> None:
        if self.epoch_steps is None and not _on_scales(self.model):
            raise LibraError(f"{type(self.model).__name__} knows no epochs; give the callback epoch_steps.")
        # What cannot be judged or saved is said before anything is learnt.
        _scales(self.model)
        if not _on_scales(self.model):
            _evaluate(self.model, self.bank.select([0]))
            if self.best_path is not None and Path(self.best_path).suffix == ".safetensors":
                raise self._no_weigher(self.best_path)
        if self.epoch_steps is not None:  # a model may begin anew, or have learnt before
            self.epoch = self.num_timesteps // self.epoch_steps

    def _on_step(self) -> bool:
        if self.epoch_steps is not None and self.num_timesteps // self.epoch_steps > self.epoch:
            self._judge(self.num_timesteps // self.epoch_steps)
        return True

    def _on_rollout_end(self) -> None:
        if self.epoch_steps is None:
            assert isinstance(self.model, LibraDQN)
            assert self.model.learner is not None
            self._judge(self.model.learner.epoch)

    def _judge(self, epoch: int) -> None:
        self.epoch = epoch
        if _on_scales(self.model):
            self.weigher = self.model.weigher(self.about)
            evaluation = self.weigher.evaluate(self.bank)
            self.weigher.about["validation"] = {"epoch": epoch, **figures(evaluation)}
        else:
            evaluation = _evaluate(self.model, self.bank)
        self.logger.record("rollout/epoch", epoch)
        for key, value in figures(evaluation).items():
            self.logger.record(f"validation/{key}", value)
        improved = has_learnt(self.model) and evaluation.mae < self.best_mae
        if improved:
            self.best_mae, self.best_epoch = evaluation.mae, epoch
        self.on_epoch(evaluation, improved)

    def on_epoch(self, evaluation: Evaluation, improved: bool) -> None:
        """What follows each judgement: the best model so far is saved."""
        if improved and self.best_path is not None:
            self.save(self.best_path)

    def save(self, path: str | Path) -> None:
        """Save the model: as the `Weigher` that was judged if the name ends in `.safetensors`, else as SB3's zip."""
        if Path(path).suffix != ".safetensors":
            self.model.save(path)
        elif self.weigher is not None:
            self.weigher.save(path)
        else:
            raise self._no_weigher(path)

    def _no_weigher(self, path: str | Path) -> LibraError:
        return LibraError(
            f"{type(self.model).__name__} has no safetensors form; save it as a .zip instead of {str(path)!r}."
        )


def figures(score: Score) -> dict[str, float]:
    """The figures of a score that a curve can be drawn of."""
    plain = {key: float(value) for key, value in vars(score).items() if isinstance(value, int | float)}
    return plain | {f"game_{level}": value for level, value in enumerate(score.game) if level > 0}


def has_learnt(model: BaseAlgorithm) -> bool:
    """Whether there was any update: a network as it was drawn counts by chance, be it ever so well."""
    return not _on_scales(model) or model.started or model.learner is None or model.learner.updates > 0


def _on_scales(model: BaseAlgorithm) -> TypeGuard[LibraDQN]:
    return isinstance(model, LibraDQN) and model.learner is not None


def _evaluate(model: BaseAlgorithm, bank: FeatureBank) -> Evaluation:
    scales = _scales(model)
    return evaluate(model, bank.with_quantizer(scales.bank.quantizer), task=scales.task)


def _scales(model: BaseAlgorithm) -> WeighingVecEnv:
    """The scales that a model learns on, through wrappers that `evaluate` knows."""
    env: VecEnv | None = model.get_env()
    while isinstance(env, VecEnvWrapper):
        if not isinstance(env, VecMonitor | VecNormalize):
            raise LibraError(
                f"A model cannot be judged on a bank through a {type(env).__name__}; leave the wrapper out."
            )
        env = env.venv
    if not isinstance(env, WeighingVecEnv):
        raise LibraError("A model can be judged on a bank only if it learns on agents.make_vec_env(...).")
    return env
