"""SB3's progress bar for a loop whose steps are blocks of weighings."""

from __future__ import annotations

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, ProgressBarCallback
from stable_baselines3.common.type_aliases import MaybeCallback


class BlockBar(ProgressBarCallback):
    """Counts the transitions of each block, of which a callback's step has more than `num_envs`."""

    def _on_training_start(self) -> None:
        super()._on_training_start()
        if self.locals["epochs"] is not None:  # nobody knows how many transitions these will be
            self.pbar.total = None
        self._begun = self.num_timesteps

    def _on_step(self) -> bool:
        self.pbar.update(self.num_timesteps - self._begun - self.pbar.n)
        return True


def with_bars(callback: MaybeCallback, progress_bar: bool) -> MaybeCallback:
    """What the user gave, with bars that count blocks in place of SB3's; and one more if it is asked for."""
    given = _in_blocks(callback)
    if not progress_bar:
        return given
    others = given if isinstance(given, BaseCallback | list) else ConvertCallback(given)
    return CallbackList([*(others if isinstance(others, list) else [others]), BlockBar()])


def _in_blocks(callback: MaybeCallback) -> MaybeCallback:
    if isinstance(callback, list):
        return [_one_in_blocks(each) for each in callback]
    return _one_in_blocks(callback) if isinstance(callback, BaseCallback) else callback


def _one_in_blocks(callback: BaseCallback) -> BaseCallback:
    if isinstance(callback, CallbackList):
        callback.callbacks = [_one_in_blocks(each) for each in callback.callbacks]
    return BlockBar() if type(callback) is ProgressBarCallback else callback
