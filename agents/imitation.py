"""Imitation: behaviour cloning and DAgger, the paper's row “Imitation Learning” (ablation study, “Optimal Action”).

The agent's own network learns by cross-entropy which action the expert would take (Eq. 11); illegal actions are left
out of the softmax. The paper does not say on whose states, so there are two: behaviour cloning learns on the expert's,
and DAgger (Ross et al., 2011) on those that the learner itself gets into, which the expert then labels.

All else is LibraDQN's: index replay, blocks, checkpoints, and the finished `Weigher`, whose Q values are logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.dqn.policies import DQNPolicy
from torch import Tensor
from torch.nn import functional as F

from agents.libra_dqn.algorithm import LibraDQN
from agents.libra_dqn.learner import Learner, LearnerSettings
from agents.libra_dqn.replay import Transitions
from agents.vec_env import WeighingVecEnv
from libra_gym.errors import LibraError
from libra_gym.settings import AtLeastOne, AtLeastZero, Fraction, NotNegative, Positive, Share, check_arguments


@dataclass(frozen=True)
class ImitationSettings(LearnerSettings):
    """How to imitate; `DAgger` explains β."""

    beta_start: float
    beta_end: float
    beta_step: float

    def beta(self, epoch: int) -> float:
        """The share of actions that the expert takes in this epoch."""
        return max(self.beta_end, self.beta_start - self.beta_step * epoch)


class ImitationLearner(Learner):
    """Weighs with the expert's and its own actions, and learns to name the expert's."""

    settings: ImitationSettings

    @property
    def beta(self) -> float:
        """The share of actions that the expert takes in the present epoch."""
        return self.settings.beta(self.epoch)

    def _embed(self, patches: Tensor) -> Tensor:
        """Where the expert takes every action, nobody looks at the features."""
        return patches[:, None] if self.beta >= 1.0 else super()._embed(patches)

    def _act(self, embedded: Tensor, history: Tensor, truth: Tensor, value: Tensor) -> Tensor:
        """The expert's action with probability β, one coin per patch and step, else the learner's own."""
        expert: Tensor = self.task.optimal(truth, value)
        if self.beta >= 1.0:
            return expert
        coin = torch.rand(len(value), generator=self.generator, device=self.device) < self.beta
        return torch.where(coin, expert, super()._act(embedded, history, truth, value))

    def _loss(self, batch: Transitions, features: Tensor) -> Tensor:
        """Cross-entropy of the expert's action among the legal ones; whose action was taken does not matter."""
        logits = self.online(features, self.task.encode(batch.history))
        wanted = self.task.optimal(self.truth[batch.patch], batch.value)
        return F.cross_entropy(logits.masked_fill(~self.rules.legal(batch.value), -torch.inf), wanted)


class BehaviourCloning(LibraDQN):
    """Learns what the expert does on the expert's own states.

    Args:
        policy: `ScalePolicy` (`MlpPolicy` is the same).
        env: an `agents.make_vec_env(...)`; its rewards do not matter.
        learning_rate: of the optimiser, or a schedule.
        buffer_size: situations that are kept.
        learning_starts: situations to store before the first update.
        batch_size: situations in an update.
        update_every: situations stored per update.
        average, normalise, calibrate, final_learning_rate, max_grad_norm: as for `LibraDQN`.
        stats_window_size, tensorboard_log, policy_kwargs, verbose, seed, device: as for every SB3 algorithm.
    """

    learner_class: ClassVar[type[Learner]] = ImitationLearner
    beta_start, beta_end, beta_step = 1.0, 1.0, 0.0

    def __init__(
        self,
        policy: str | type[DQNPolicy] = "ScalePolicy",
        env: GymEnv | str | None = None,
        learning_rate: NotNegative | Schedule = 5e-4,
        buffer_size: AtLeastOne = 1_000_000,
        learning_starts: AtLeastZero = 4_000,
        batch_size: AtLeastOne = 256,
        update_every: AtLeastOne = 400,
        average: Fraction = 0.0,
        normalise: bool = False,
        calibrate: bool = False,
        final_learning_rate: NotNegative | None = None,
        max_grad_norm: Positive | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(
            policy,
            env,
            learning_rate,
            buffer_size,
            learning_starts,
            batch_size,
            update_every=update_every,
            epsilon_start=0.0,
            epsilon_end=0.0,
            epsilon_step=0.0,
            easy_drop=0.0,
            average=average,
            normalise=normalise,
            calibrate=calibrate,
            final_learning_rate=final_learning_rate,
            max_grad_norm=max_grad_norm,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=_init_setup_model,
        )

    def _setup_model(self) -> None:
        self._check_env(self.env)
        super()._setup_model()

    def _check_env(self, env: GymEnv | None) -> None:
        if env is not None and not isinstance(env, WeighingVecEnv):
            raise LibraError(
                f"{type(self).__name__} needs the scales of agents.make_vec_env(...): only they have an expert."
            )

    def _learner_settings(self, block: int) -> ImitationSettings:
        if self.beta_end > self.beta_start:
            raise LibraError(
                f"beta_end is {self.beta_end}, but β falls; it must be at most beta_start, {self.beta_start}."
            )
        return ImitationSettings(
            **vars(super()._learner_settings(block)),
            beta_start=self.beta_start,
            beta_end=self.beta_end,
            beta_step=self.beta_step,
        )

    def _record_epoch(self) -> None:
        super()._record_epoch()
        assert isinstance(self.learner, ImitationLearner)
        self.logger.record("rollout/expert_share", self.learner.settings.beta(self.learner.epoch - 1))


class DAgger(BehaviourCloning):
    """Learns what the expert would do on the states that the learner itself gets into.

    The replay is DAgger's growing data set, as long as `buffer_size` holds all of it.

    Args:
        beta_start, beta_end, beta_step: β of an epoch, the share of actions that the expert takes; a coin is thrown per
            patch and step.
        kwargs: as for `BehaviourCloning`.
    """

    def __init__(
        self, *args: Any, beta_start: Share = 1.0, beta_end: Share = 0.0, beta_step: NotNegative = 0.5, **kwargs: Any
    ) -> None:
        check_arguments(DAgger.__init__, {"beta_start": beta_start, "beta_end": beta_end, "beta_step": beta_step})
        self.beta_start, self.beta_end, self.beta_step = beta_start, beta_end, beta_step
        super().__init__(*args, **kwargs)
