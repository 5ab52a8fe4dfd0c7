"""Counting photos with any agent library: a vector wrapper that adds up the patches of each photo."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from libra_gym.envs.vector import StepResult, WeighingVectorEnv
from libra_gym.errors import LibraError
from libra_gym.evaluation import Readout, counts_of

Ints = npt.NDArray[np.int64]


class ImageCounts(VectorWrapper):
    """Weigh photo after photo, patches side by side, and tell each photo's count when its last patch is balanced.

    In the step in which that happens, `infos` holds, at the scale that weighed the photo's last patch:

    * `image`: the photo's number in the bank,
    * `image_count`: the people counted in it,
    * `image_people`: the people there are,

    each with its mask (`_image`, …), as is usual in Gymnasium's vector environments; other steps do without the keys.
    Each photo is told once per pass through the bank, whatever the number of scales. A reset returns to the first.

    Args:
        env: a `WeighingVectorEnv` (wrapped or not) with `order="sequential"` and an autoreset mode.
        readout: how an interval becomes a count; see `libra_gym.evaluation.Readout`. Real-valued counts need none.
    """

    def __init__(self, env: VectorEnv, readout: Readout = "mean") -> None:
        super().__init__(env)
        base = env.unwrapped
        if not isinstance(base, WeighingVectorEnv):
            raise LibraError(f"ImageCounts needs a WeighingVectorEnv, not a {type(base).__name__}.")
        if base.scales.order.order != "sequential":
            raise LibraError(
                f"ImageCounts needs order='sequential', but the environment has {base.scales.order.order!r}."
            )
        if base.autoreset_mode is AutoresetMode.DISABLED:
            raise LibraError(
                "ImageCounts needs autoreset_mode NEXT_STEP or SAME_STEP, but the environment has DISABLED."
            )
        self._order = base.scales.order
        self._bank = base.scales.bank
        self._same_step = base.autoreset_mode is AutoresetMode.SAME_STEP
        task = base.scales.task
        self._tick = task.tick
        self._counts = counts_of(np.arange(task.ceiling + 1), task, self._bank, readout)  # by value in ticks
        self._image_of = self._bank.image_of.cpu().numpy()
        self._waiting: Ints = np.arange(0)  # scales that ended in the last step
        self._rewind()

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start again with the bank's first photo."""
        if unfit := {"patch", "reset_mask"} & set(options or {}):
            raise LibraError(f"ImageCounts weighs whole photos in order, so reset cannot take options {sorted(unfit)}.")
        self._rewind()
        self._note_loaded(np.arange(self.num_envs))
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: npt.NDArray[np.int64]) -> StepResult:
        """Take one action on every scale."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        ended = np.flatnonzero(terminations)
        if len(ended):
            final = infos["final_info"] if self._same_step else infos
            infos |= self._add_up(ended, final["patch"][ended], final["value"][ended])
        self._note_loaded(ended if self._same_step else self._waiting)
        self._waiting = ended
        return observations, rewards, terminations, truncations, infos

    def _rewind(self) -> None:
        self._order.seed((), np.arange(0))  # seeds nothing, but begins the first epoch
        self._drawn = 0
        self._waiting = np.arange(0)
        self._passes = np.zeros(self.num_envs, dtype=np.int64)  # the pass through the bank that a scale's patch is of
        self._open: dict[int, tuple[int, float]] = {}  # pass and image → its patches to come, its people so far

    def _note_loaded(self, scales: Ints) -> None:
        """Keep count of the patches handed out: with more scales than patches, passes through the bank overlap."""
        self._passes[scales] = (self._drawn + np.arange(len(scales))) // len(self._bank)
        self._drawn += len(scales)

    def _add_up(self, scales: Ints, patches: Ints, values: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Add weighed patches to their photos; the infos of the photos that are thereby finished."""
        counts = self._counts[np.rint(values / self._tick).astype(np.int64)]
        keys = self._passes[scales] * len(self._bank.images) + self._image_of[patches]
        opened, member, number = np.unique(keys, return_inverse=True, return_counts=True)
        sums = np.bincount(member, weights=counts)
        finished: list[tuple[int, int, float]] = []  # scale, image, count
        for i, key in enumerate(opened.tolist()):
            image = key % len(self._bank.images)
            left, so_far = self._open.pop(key, (self._bank.images[image].patches, 0.0))
            left, so_far = left - int(number[i]), so_far + float(sums[i])
            if left:
                self._open[key] = left, so_far
            else:
                finished.append((int(scales[member == i][-1]), image, so_far))
        return self._infos(finished)

    def _infos(self, finished: list[tuple[int, int, float]]) -> dict[str, npt.NDArray[Any]]:
        if not finished:
            return {}
        at = [scale for scale, _, _ in finished]
        infos: dict[str, npt.NDArray[Any]] = {
            "image": np.zeros(self.num_envs, dtype=np.int64),
            "image_count": np.zeros(self.num_envs),
            "image_people": np.zeros(self.num_envs),
        }
        infos["image"][at] = [image for _, image, _ in finished]
        infos["image_count"][at] = [count for _, _, count in finished]
        infos["image_people"][at] = [self._bank.images[image].people for _, image, _ in finished]
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[at] = True
        return infos | {f"_{key}": mask.copy() for key in infos}
