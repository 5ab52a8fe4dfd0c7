"""How LibraDQN runs on the scales: SB3's `learn`, with a block of patches where SB3 has a step of the environments."""

from __future__ import annotations

import io
import pathlib
from typing import Any, TypeVar

import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback

from agents.libra_dqn.learner import Learner
from agents.libra_dqn.progress import with_bars
from libra_gym.errors import LibraError
from libra_gym.features.storage import write_whole

_ENDLESS = 2**62
SelfBlockwise = TypeVar("SelfBlockwise", bound="Blockwise")


class Blockwise(DQN):
    """Learns by its learner's blocks; without a learner, by SB3's own loop."""

    learner: Learner | None
    epochs_done: int

    @property
    def _weighing(self) -> bool:
        """Whether this agent was made for the scales, and not for SB3's own loop."""
        return self.policy_kwargs.get("task") is not None

    def _on_scales(self, what: str) -> Learner:
        """The learner, without which an agent cannot do this."""
        if self.learner is not None:
            return self.learner
        if self._weighing:
            raise LibraError(f"This agent has no scales yet; give it agents.make_vec_env(...) by set_env to {what}.")
        raise LibraError(f"Only an agent on the scales of agents.make_vec_env(...) can {what}.")

    def learn(
        self: SelfBlockwise,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfBlockwise:
        """Learn from this many transitions; on the scales, `log_interval` counts epochs."""
        if self.learner is None:
            name = tb_log_name or type(self).__name__
            return super().learn(total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar)
        return self._run(total_timesteps, None, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)

    def learn_epochs(
        self: SelfBlockwise,
        epochs: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "",
        reset_num_timesteps: bool = True,
    ) -> SelfBlockwise:
        """Learn until this many epochs are complete in all."""
        self._on_scales("learn by epochs")
        return self._run(_ENDLESS, epochs, callback, log_interval, tb_log_name, reset_num_timesteps, False)

    def save_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase) -> None:
        """As SB3's; on the scales, the stored transitions as a safetensors file, without pickle."""
        if not self._weighing:
            super().save_replay_buffer(path)
            return
        learner = self._on_scales("save a replay buffer")
        data = learner.replay.dumps(learner.origin)
        if isinstance(path, str | pathlib.Path):
            write_whole(pathlib.Path(path), data)
        else:
            path.write(data)

    def load_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True) -> None:
        """As SB3's; on the scales, what `save_replay_buffer` wrote there, for an agent on the same bank."""
        if not self._weighing:
            super().load_replay_buffer(path, truncate_last_traj)
            return
        learner = self._on_scales("load a replay buffer")
        try:
            data = pathlib.Path(path).read_bytes() if isinstance(path, str | pathlib.Path) else path.read()
        except OSError as error:
            raise LibraError(f"The replay buffer {str(path)!r} cannot be read ({error.strerror}).") from None
        learner.replay.loads(data, len(learner.bank), learner.origin, str(path))

    def _run(
        self: SelfBlockwise,
        total_timesteps: int,
        epochs: int | None,
        callback: MaybeCallback,
        log_interval: int,
        tb_log_name: str,
        reset_num_timesteps: bool,
        progress_bar: bool,
    ) -> SelfBlockwise:
        """Blocks until so many transitions were taken, so many epochs are complete, or a callback says stop."""
        learner = self.learner
        assert learner is not None
        callback = with_bars(callback, progress_bar)
        tb_log_name = tb_log_name or type(self).__name__
        total_timesteps, callbacks = self._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name)
        callbacks.on_training_start(locals(), globals())
        callbacks.on_rollout_start()
        while self.num_timesteps < total_timesteps and (epochs is None or learner.epoch < epochs):
            if epochs is None:
                self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            else:
                self._current_progress_remaining = 1.0 - (learner.epoch + learner.cursor / len(learner.bank)) / epochs
            if not self._learn_block(callbacks, log_interval):
                break
        callbacks.on_training_end()
        return self

    def _learn_block(self, callback: BaseCallback, log_interval: int) -> bool:
        """Weigh one block and update; at an epoch's end, log. False stops the training."""
        learner = self.learner
        assert learner is not None
        self._update_learning_rate(self.policy.optimizer)
        self.exploration_rate = learner.epsilon
        self.policy.set_training_mode(True)
        report = learner.learn_block()
        self.policy.set_training_mode(False)
        self.num_timesteps += report.transitions
        self._n_updates, self.epochs_done = learner.updates, learner.epoch
        # For callbacks that read the locals of SB3's loop: every weighing of a block has ended.
        dones = np.ones(report.weighings, dtype=np.bool_)
        infos: list[dict[str, Any]] = [{} for _ in dones]
        callback.update_locals(locals())
        go_on = callback.on_step()
        if report.epoch_done:
            self._record_epoch()
            callback.on_rollout_end()
            if log_interval is not None and learner.epoch % log_interval == 0:
                self.dump_logs()
            callback.on_rollout_start()
        return go_on

    def _record_epoch(self) -> None:
        learner = self.learner
        assert learner is not None
        summary = learner.summary
        self._episode_num += summary.weighings
        if self.ep_info_buffer is not None:
            self.ep_info_buffer.clear()  # the means that SB3 logs are those of this epoch
            self.ep_info_buffer.append({"r": summary.mean_return, "l": summary.mean_steps, "t": 0.0})
        for key, value in (
            ("rollout/exploration_rate", summary.epsilon),
            ("rollout/epoch", learner.epoch),
            ("rollout/exact", summary.exact),
            ("train/loss", summary.loss),
        ):
            self.logger.record(key, value)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
