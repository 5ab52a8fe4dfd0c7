"""LibraDQN: the paper's agent as a Stable-Baselines3 algorithm (Sec. 2.2 to 2.4, Algorithm 1).

On the scales of libra-gym it has a loop of its own that never leaves the device: a block of patches is weighed to the
end, its transitions are stored by index, and as many updates follow as the block has paid for. On any other environment
with discrete actions it is SB3's DQN with the paper's L1 loss.
"""

from __future__ import annotations

import inspect
import io
import math
import pathlib
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.dqn.policies import CnnPolicy, DQNPolicy, MultiInputPolicy
from torch.nn import functional as F

from agents.dqn_variants import learn_differences
from agents.libra_dqn.blockwise import Blockwise
from agents.libra_dqn.checks import (
    FIXED,
    check_elsewhere,
    check_fixed,
    check_looks_ahead,
    check_on_scales,
    check_settings,
)
from agents.libra_dqn.learner import Learner, LearnerSettings, LossFunction, check_start
from agents.libra_dqn.policy import ScalePolicy
from agents.vec_env import WeighingVecEnv
from libra_gym import evaluation
from libra_gym.bank import FeatureBank
from libra_gym.errors import LibraError
from libra_gym.evaluation import Weighed
from libra_gym.settings import (
    AtLeastOne,
    AtLeastZero,
    Fraction,
    NotNegative,
    Positive,
    Quantile,
    Share,
    check_arguments,
)
from libra_gym.task import WeighingTask
from libra_gym.weigher import Weigher

Loss: TypeAlias = Literal["l1", "huber", "mse"]
LOSSES: dict[Loss, LossFunction] = {"l1": F.l1_loss, "mse": F.mse_loss}
_ADDED = ("task", "average")
"""What an agent on the scales adds to its policy's arguments."""
SelfLibraDQN = TypeVar("SelfLibraDQN", bound="LibraDQN")


class LibraDQN(Blockwise):
    """Deep Q-learning on the counting scale; by default as in the paper, or in its authors' program where it is silent.

    An *epoch* weighs every patch of the bank once, in blocks of the environment's `num_envs`. At its start the target
    network is synced and ε is lowered. One step of a callback is one block. The patches of an epoch are shuffled by the
    agent's own seed; the environment's `order` and seed have no part in it.

    Args:
        policy: `ScalePolicy` (`MlpPolicy` is the same).
        env: an `agents.make_vec_env(...)`, or any environment with discrete actions for SB3's own loop.
        learning_rate: of the optimiser, or a schedule.
        buffer_size: transitions that are kept.
        learning_starts: transitions to store before the first update; None waits for a full buffer.
        batch_size: transitions in an update.
        gamma: the discount.
        update_every: transitions stored per update.
        epsilon_start, epsilon_end, epsilon_step: ε of an epoch; one coin is thrown per patch and step.
        syncs: how often in an epoch the target network is synced, the epoch's start included, at most once a block.
            The value of the last of eight steps needs eight of them to reach the first.
        easy_drop: share of the transitions with an error of at most one tick (an interval; a hundredth of a person when
            counts are weighed) that are not stored.
        loss: `l1`, `huber` (squared up to a difference of `huber_delta`, `l1` beyond) or `mse`.
        huber_delta: where `huber` changes from the one to the other.
        quantile: with `l1`, which quantile of a patch's possible counts to aim at instead of the median. A photo's
            count is a sum over patches and so wants their means, which lie above the medians.
        double: choose the next action with the online network and value it with the target network.
        mask_target: leave illegal actions out of the target's maximum.
        backup: learn from the action `taken`, or from `all` actions of each stored situation; the task is exact, so
            that their rewards and next states are known without trying them.
        average: decay of a running average of the network's weights that `weigher` counts with; 0 keeps none.
        normalise: standardise features by the mean and deviation over the bank.
        calibrate: give the finished counter a look-up table fitted to what it weighs (`Weigher.calibrate`).
        final_learning_rate: let the learning rate fall in a line to this; None keeps it.
        max_grad_norm: clip gradients; None does not.
        train_freq, gradient_steps, target_update_interval, exploration_fraction: SB3's settings, for its own loop.
        stats_window_size, tensorboard_log, policy_kwargs, verbose, seed, device: as for every SB3 algorithm.
            `policy_kwargs={"network": {...}}` changes the network, `{"optimizer_class": ...}` the optimiser.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "ScalePolicy": ScalePolicy,
        "MlpPolicy": ScalePolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    learner_class: ClassVar[type[Learner]] = Learner

    def __init__(
        self,
        policy: str | type[DQNPolicy] = "ScalePolicy",
        env: GymEnv | str | None = None,
        learning_rate: NotNegative | Schedule = 1e-5,
        buffer_size: AtLeastOne = 10_000,
        learning_starts: AtLeastZero | None = None,
        batch_size: AtLeastOne = 128,
        gamma: Share = 0.9,
        update_every: AtLeastOne = 100,
        epsilon_start: Share = 1.0,
        epsilon_end: Share = 0.1,
        epsilon_step: NotNegative = 0.05,
        syncs: AtLeastOne = 1,
        easy_drop: Share = 0.5,
        loss: Loss = "l1",
        huber_delta: Positive = 1.0,
        quantile: Quantile = 0.5,
        double: bool = False,
        mask_target: bool = True,
        backup: Literal["taken", "all"] = "taken",
        average: Fraction = 0.0,
        normalise: bool = False,
        calibrate: bool = False,
        final_learning_rate: NotNegative | None = None,
        max_grad_norm: Positive | None = None,
        train_freq: int | tuple[int, str] = 4,
        gradient_steps: int = 1,
        target_update_interval: int = 10_000,
        exploration_fraction: float = 0.1,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        check_arguments(LibraDQN.__init__, locals())
        if env is None and _init_setup_model:
            raise LibraError(f"{type(self).__name__} needs an environment, such as agents.make_vec_env(...).")
        self.update_every = update_every
        self.epsilon_step = epsilon_step
        self.syncs = syncs
        self.easy_drop = easy_drop
        self.loss = loss
        self.huber_delta = huber_delta
        self.quantile = quantile
        self.double = double
        self.mask_target = mask_target
        self.backup = backup
        self.average = average
        self.normalise = normalise
        self.calibrate = calibrate
        self.learner: Learner | None = None
        self.epochs_done = 0
        self.started = False
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]  # None is what SB3's own load() passes
            _schedule(learning_rate, final_learning_rate),
            buffer_size,
            buffer_size if learning_starts is None else learning_starts,
            batch_size,
            1.0,
            gamma,
            train_freq,
            gradient_steps,
            target_update_interval=target_update_interval,
            exploration_fraction=exploration_fraction,
            exploration_initial_eps=epsilon_start,
            exploration_final_eps=epsilon_end,
            max_grad_norm=math.inf if max_grad_norm is None else max_grad_norm,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=_init_setup_model,
        )
        if _init_setup_model:  # one that is loaded is as it was made
            check_looks_ahead(self)
            check_on_scales(self, inspect.signature(LibraDQN.__init__).parameters)

    # ------------------------------------------------------------------------------------------------------- set-up

    def _setup_model(self) -> None:
        if isinstance(self.env, WeighingVecEnv) and "task" not in self.policy_kwargs:
            # In a new dict: the caller's own may serve for other agents.
            self.policy_kwargs = {**self.policy_kwargs, "task": self.env.task.to_dict()}
        check_settings(self)
        if self._weighing:
            self._check_env(self.env)
            if not issubclass(self.policy_class, ScalePolicy):
                raise LibraError(f"{self.policy_class.__name__} cannot weigh; on the scales the policy is ScalePolicy.")
            self.policy_kwargs = {**self.policy_kwargs, "average": self.average > 0}
            self.replay_buffer = _NO_BUFFER  # the learner has its own
        else:
            check_elsewhere(self, inspect.signature(LibraDQN.__init__).parameters)
        with warnings.catch_warnings():
            if self._weighing:  # SB3's loop, whose target network it is about, is not used
                warnings.filterwarnings("ignore", "The number of environments used is greater")
            super()._setup_model()
        if self.replay_buffer is _NO_BUFFER:
            self.replay_buffer = None
        if self._weighing and self.env is not None:
            self._attach()

    @classmethod
    def load(
        cls: type[SelfLibraDQN],
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: torch.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> SelfLibraDQN:
        """As SB3's; further arguments are the constructor's, in place of what was saved."""
        check_arguments(LibraDQN.__init__, kwargs)
        check_arguments(cls.__init__, kwargs)  # a subclass may have its own
        if "final_learning_rate" in kwargs or "learning_rate" in kwargs:
            if "learning_rate" not in kwargs:
                raise LibraError("final_learning_rate goes with a learning_rate to fall from; give both.")
            kwargs["learning_rate"] = _schedule(kwargs["learning_rate"], kwargs.pop("final_learning_rate", None))
        for name, own in (("epsilon_start", "exploration_initial_eps"), ("epsilon_end", "exploration_final_eps")):
            if name in kwargs:
                kwargs[own] = kwargs.pop(name)
        if "loss" in kwargs:
            kwargs.setdefault("huber_delta", 1.0)  # what was saved is of another loss
        if "max_grad_norm" in kwargs and kwargs["max_grad_norm"] is None:
            kwargs["max_grad_norm"] = math.inf
        if kwargs.keys() & {"policy_kwargs", "learning_starts", *FIXED}:
            saved, _, _ = load_from_zip_file(path, device=device, custom_objects=custom_objects)
            assert saved is not None
            check_fixed(kwargs, saved)
            if kwargs.get("policy_kwargs") is not None:  # which has to be as it was: with what was added to it
                added = {name: saved["policy_kwargs"][name] for name in _ADDED if name in saved["policy_kwargs"]}
                kwargs["policy_kwargs"] = {**kwargs["policy_kwargs"], **added}
            if "learning_starts" in kwargs and kwargs["learning_starts"] is None:
                kwargs["learning_starts"] = kwargs.get("buffer_size", saved["buffer_size"])
        return super().load(path, env, device, custom_objects, print_system_info, force_reset, **kwargs)

    def _check_env(self, env: GymEnv | None) -> None:
        if env is not None and not isinstance(env, WeighingVecEnv):
            raise LibraError(
                f"This agent was made on the scales and cannot go on with a {type(env).__name__}; give it an "
                "agents.make_vec_env(...) itself, without a wrapper."
            )

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Go on with another environment: with its bank, and with the epoch, ε and updates of before.

        On the same bank and task, the replay and the place in the epoch stay too.
        """
        if self._weighing:
            self._check_env(env)
        super().set_env(env, force_reset)
        if self._weighing:
            self._attach()

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed all that is random, the learner's own generators among it."""
        super().set_random_seed(seed)
        if seed is not None and self.learner is not None:
            self.learner.reseed(seed)

    def _attach(self) -> None:
        """Make a learner for the environment's bank; epoch, ε and updates go on, and an epoch that was begun anew.

        A learner that has this bank and task already goes on where it is.
        """
        assert isinstance(self.env, WeighingVecEnv)
        if self.calibrate and self.env.task.tick != 1.0:
            raise LibraError("calibrate is true, but real-valued counts have no look-up table; leave it out.")
        self._take_task(self.env.task)
        if self.learner is not None and self.learner.serves(self.env.bank, self.env.task):
            self.learner.settings = self._learner_settings(self.env.num_envs)
            return
        fresh = self.num_timesteps == 0 and self._n_updates == 0 and not self.started
        self.learner = self.learner_class(
            self.env.bank,
            self.env.task,
            self.q_net.q_net,  # type: ignore[arg-type]
            self.q_net_target.q_net,  # type: ignore[arg-type]
            self.policy.average,  # type: ignore[arg-type]
            self.policy.optimizer,
            self._loss_function(),
            self._learner_settings(self.env.num_envs),
            seed=self.seed,
        )
        self.replay_buffer = self.learner.replay  # type: ignore[assignment]  # SB3's callbacks ask whether there is one
        self.learner.epoch, self.learner.updates = self.epochs_done, self._n_updates
        if fresh and self.normalise:
            self.learner.normalise()

    def _take_task(self, task: WeighingTask) -> None:
        """What is legal depends on the environment's range; all else must be as it was when the network was made."""
        before = WeighingTask.from_dict(self.policy_kwargs["task"])
        for name in ("pool", "tick", "max_steps", "weight_encoding"):
            new, old = getattr(task, name), getattr(before, name)
            if new != old:
                raise LibraError(
                    f"The environment's {name} is {new!r}, but the agent's is {old!r}; give it an environment like the "
                    "one that it was made with."
                )
        self.policy_kwargs = {**self.policy_kwargs, "task": task.to_dict()}
        for part in (self.policy, self.q_net, self.q_net_target):
            part.task = task  # type: ignore[assignment]  # torch declares every attribute a tensor or module

    def _learner_settings(self, block: int) -> LearnerSettings:
        return LearnerSettings(
            block=block,
            buffer_size=self.buffer_size,
            learning_starts=self.learning_starts,
            batch_size=self.batch_size,
            gamma=self.gamma,
            update_every=self.update_every,
            epsilon_start=self.exploration_initial_eps,
            epsilon_end=self.exploration_final_eps,
            epsilon_step=self.epsilon_step,
            syncs=self.syncs,
            easy_drop=self.easy_drop,
            double=self.double,
            mask_target=self.mask_target,
            backup=self.backup,
            average=self.average,
            max_grad_norm=self.max_grad_norm,
            quantile=self.quantile,
        )

    def start_from(self, counter: Weigher) -> None:
        """Begin with the network of a finished counter, and with how that one standardises features.

        Its backbone may be another, so that a scale can follow a backbone that has learnt on; and since the appendix's
        intervals are the same for all data sets, so can the data set.
        """
        learner = self._on_scales("start from a counter")
        check_start(counter, learner.online.settings, learner.task)
        learner.start_from(counter.network)
        self.started = True

    def weigher(self, about: Mapping[str, Any] | None = None) -> Weigher:
        """The agent as a counter that needs no SB3; its network is the agent's own (or its average), not a copy."""
        learner = self._on_scales("become a weigher")
        quantizer = learner.bank.quantizer if learner.task.tick == 1.0 else None
        weigher = Weigher(learner.judged, learner.task, quantizer, about)
        return weigher.calibrate(learner.bank) if self.calibrate else weigher

    def weigh(self, bank: FeatureBank, task: WeighingTask | None = None, *, batch: int = 8192) -> Weighed:
        """Weigh every patch of a bank without exploring. A task is only for a check: the agent knows its own."""
        if not self._weighing:
            asked = task or WeighingTask.intervals(bank.num_intervals)
            return evaluation.weigh(lambda rows: self.predict(rows, deterministic=True)[0], bank, asked, batch=batch)
        network = self.q_net.q_net if self.policy.average is None else self.policy.average
        own = WeighingTask.from_dict(self.policy_kwargs["task"])
        return Weigher(network, own, None).weigh(bank, task, batch=batch)  # type: ignore[arg-type]  # a ScaleNetwork

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """The actions that the agent takes; on the scales one coin of ε is thrown per row, and all are legal."""
        if not self._weighing:
            return super().predict(observation, state, episode_start, deterministic)
        actions, state = self.policy.predict(observation, state, episode_start, deterministic=True)
        if not deterministic:
            rows, _ = self.policy.obs_to_tensor(observation)
            legal = self.q_net.legal(rows).cpu().numpy()  # type: ignore[operator]  # a ScaleQNetwork
            dice = self.action_space.np_random
            lots = np.where(legal, dice.random(legal.shape), -1.0).argmax(1)
            coins = dice.random(len(legal)) < self.exploration_rate
            actions = np.where(coins, lots, np.reshape(actions, -1)).reshape(np.shape(actions))
        return actions, state

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """SB3's update with the chosen loss and an optional double Q target; used on other environments only."""
        learn_differences(self, gradient_steps, batch_size, loss=self._loss_function(), double=self.double)

    def _loss_function(self) -> LossFunction:
        return partial(F.smooth_l1_loss, beta=self.huber_delta) if self.loss == "huber" else LOSSES[self.loss]

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "learner"]


def _schedule(learning_rate: float | Schedule, final: float | None) -> float | Schedule:
    """The learning rate as SB3 takes it: falling in a line where it has an end."""
    if callable(learning_rate):
        if final is None:
            return learning_rate
        raise LibraError("final_learning_rate goes with a number as learning_rate; a schedule has an end of its own.")
    return float(learning_rate) if final is None else LinearSchedule(float(learning_rate), float(final), 1.0)


class _NoBuffer:
    """Stands where SB3 would otherwise allocate observations for a buffer that is never used."""


_NO_BUFFER: Any = _NoBuffer()
