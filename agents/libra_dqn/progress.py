"""SB3's progress bar for a loop whose steps are blocks of weighings."""

from __future__ import annotations

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, ProgressBarCallback
from stable_baselines3.common.type_aliases import MaybeCallback


class BlockBar(ProgressBarCallback):
    """Counts the transitions of each block, of which a callback's step has more than `num_envs`."""

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self._begun = self.num_timesteps

    def _on_step(self) -> bool:
        self.pbar.update(self.num_timesteps - self._begun - self.pbar.n)
        return True


def with_bar(callback: MaybeCallback) -> CallbackList:
    """What the user gave, and a bar beside it."""
    given = callback if isinstance(callback, BaseCallback | list) else ConvertCallback(callback)
    return CallbackList([*(given if isinstance(given, list) else [given]), BlockBar()])
