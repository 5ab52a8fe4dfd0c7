"""One scale as a `gymnasium.Env`: `LibraWeighing-v0` and `LibraWeighingContinuous-v0`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from libra_gym.bank import FeatureBank
from libra_gym.envs.order import Order
from libra_gym.envs.scales import BankSource, Scales, Weighed, open_task
from libra_gym.errors import LibraError
from libra_gym.task import Rewards, WeightEncoding


class WeighingEnv(gym.Env[npt.NDArray[np.float32], np.int64]):
    """Weigh one patch of a crowd photo.

    ## Description

    A 32×32 patch of a photo lies on one pan of a scale. It weighs as much as the *interval* that its number of people
    falls into (0 is nobody, 1 is up to 0.14 people, then every interval is about 10 % wider than the one before). The
    agent sees the patch's feature vector, made by a frozen backbone, and the weights that it has placed so far. It adds
    and removes weights until it believes that the scale balances, and then says `end`. Counting a photo is weighing all
    of its patches. The task is that of Liu et al., *Weighing Counts: Sequential Crowd Counting by Reinforcement
    Learning*, ECCV 2020.

    ## Action Space

    `Discrete(9)`:

    | action | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |
    |---|---|---|---|---|---|---|---|---|---|
    | weight | −10 | −5 | −2 | −1 | +1 | +2 | +5 | +10 | `end` |

    An action is legal while it keeps the value within 0 … C−1, C being the bank's number of intervals; `end` always is.
    `info["action_mask"]` (int8) and `action_masks()` (bool) tell which are. An illegal weight is not an error: it moves
    the value to the end of its range and is rewarded like any other, so that algorithms without masks can play.

    ## Observation Space

    `Box(float32)`, flat: the patch's features (512 for VGG16), then the weight vector with one number for each of the
    `max_steps` steps, 0 where no action was taken yet. With `weight_encoding="value"` that number is the weight divided
    by 10; with `"index"` it is the action plus one. The bounds are finite and the same for all banks.
    `libra_gym.wrappers.DictView` splits the observation into `features` and `weights`.

    ## Rewards

    With G the true interval, V the value and E = |G − V|; the constants are those of the paper
    (`libra_gym.task.Rewards`):

    | when | reward |
    |---|---|
    | the last step, whatever the action | +5 if E = 0 after it, else −5 |
    | `end` | +5 if E = 0, else −5 |
    | a weight that leaves V ≤ 1.5·G | +3 if it is the optimal one, +1 if E fell, else −1 |
    | a weight that leaves V > 1.5·G | −1 if it is the optimal one, else −3 |

    While E > 0, the optimal weight is the legal one that brings V nearest to G; once E = 0, only `end` is optimal.

    With `rewards={"shape": "error"}`, as in most recipes of `libra train`, an action earns the error in people that it
    takes away instead (`libra_gym.task.WeighingTask.error_reward`).

    ## Starting State

    A patch from the bank and an empty pan. `order="random"` draws patches independently; `"sequential"` and
    `"shuffled"` take each patch once per epoch, and `env.unwrapped.epoch` counts the epochs. `reset(options={"patch":
    k})` puts patch k on the scale.

    ## Episode End

    The episode terminates with `end` or after `max_steps` actions. It is never truncated: the number of placed weights
    is part of the observation, and the paper's value of the last step is its reward alone.

    ## Info

    `action_mask`, `value`, `step`, `patch`, and what only a teacher or a judge may see: `privileged_truth` (the
    interval that the patch weighs) and `privileged_count` (its people). No truth is in the observation.

    ## Arguments

    ```python
    import gymnasium as gym
    import libra_gym

    env = gym.make("LibraWeighing-v0", bank="demo", split="train", max_steps=8, order="random")
    ```

    * `bank`: a named bank (`demo` ships with the package), a bank file, or a feature directory.
    * `split`: `train`, `validation`, `test`, several joined by `+`, or None for all images.
    * `rewards`: changes to the reward as a dict, for instance `{"squeezing": False}`.
    * `max_steps`: t_m, 8 in the paper.
    * `weight_encoding`: `value` or `index`.
    * `order`: `random`, `sequential` or `shuffled`.
    * `render_mode`: `rgb_array` or `ansi`. An agent can show its Q values by setting `env.unwrapped.needle`.

    ## Version History

    * v0: first release.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 2}  # noqa: RUF012
    weighed: ClassVar[Weighed] = "interval"

    def __init__(
        self,
        bank: BankSource = "demo",
        split: str | None = "train",
        rewards: Rewards | Mapping[str, Any] | None = None,
        max_steps: int = 8,
        weight_encoding: WeightEncoding = "value",
        order: Order = "random",
        render_mode: str | None = None,
    ) -> None:
        check_render_mode(render_mode, self.metadata["render_modes"])
        opened, task = open_task(
            bank, split, self.weighed, rewards=rewards, max_steps=max_steps, weight_encoding=weight_encoding
        )
        self.render_mode = render_mode
        self.scales = Scales(opened, task, 1, order)
        self.observation_space = self.scales.observation_space
        self.action_space = self.scales.action_space
        self.needle: npt.ArrayLike | None = None
        self._unseeded = True
        self._ended = True
        self._reward: float | None = None

    @property
    def epoch(self) -> int:
        """How many times as many patches as the bank has were handed out before the last; passes, if in an order."""
        return self.scales.order.epoch

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Put the next patch, or patch `options["patch"]`, on the scale."""
        super().reset(seed=seed)
        if seed is not None or self._unseeded:
            # Without a seed, the first look at `np_random` has drawn one from the operating system.
            self.scales.order.seed([own_seed(self)], np.array([0]))
            self._unseeded = False
        self.scales.load(None, None if options is None else options.get("patch"))
        self._ended, self._reward, self.needle = False, None, None
        return self.scales.observe()[0], self._info()

    def step(self, action: np.int64 | int) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Place or remove a weight, or say `end`."""
        if self._ended:
            raise gym.error.ResetNeeded("This weighing has ended; call reset() to put the next patch on the scale.")
        reward, ended = self.scales.act(np.atleast_1d(action))
        self._reward, self._ended = float(reward[0]), bool(ended[0])
        return self.scales.observe()[0], self._reward, self._ended, False, self._info()

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal now; the name is the one that sb3-contrib's MaskablePPO looks for."""
        return self.scales.action_masks()[0]

    def render(self) -> Any:
        """The scale as a picture (`rgb_array`) or as text (`ansi`)."""
        if self.render_mode is None:
            gym.logger.warn("render() does nothing without a render_mode; pass render_mode='rgb_array' or 'ansi'.")
            return None
        return render_scale(self.scales, 0, self.render_mode, self.needle, self._reward, self._ended)

    def _info(self) -> dict[str, Any]:
        # Numbers stay numpy's: TorchRL reads their types.
        return {key: array[0] for key, array in self.scales.info().items()}


class WeighingContinuousEnv(WeighingEnv):
    """Weigh one patch to a hundredth of a person.

    ## Description

    The same scale as `LibraWeighing-v0`, but a patch weighs its real-valued number of people instead of an interval, as
    in the paper's plug-in for the regression network TasselNetv2†. What is not said here is as there.

    ## Action Space

    `Discrete(19)`: the weights −5, −2, −1, −0.5, −0.2, −0.1, −0.05, −0.02, −0.01 (actions 0 to 8), +0.01, +0.02, +0.05,
    +0.1, +0.2, +0.5, +1, +2, +5 (9 to 17) and `end` (18). The paper prints no `end` in this pool; here an episode ends
    as in the other task, with `end` or after `max_steps` actions. A weight is legal while the value stays between 0 and
    the largest patch count of the bank.

    ## Observation Space

    `Box(float32)`, flat: the features, then the weight vector, weights divided by 5.

    ## Rewards

    As in `LibraWeighing-v0`, with counts instead of intervals. The scale counts as balanced when value and truth differ
    by no more than 0.005 people, half of the smallest weight; `rewards={"balance_tolerance": 10}` allows ten
    hundredths, `{"balance_share": 0.05}` also a twentieth of the truth. Within `max_steps=8` the greedy expert balances
    every patch of up to 18 people, and no more than 40 people can be put on the pan.

    ## Arguments

    Those of `LibraWeighing-v0`.

    ## Version History

    * v0: first release.
    """

    weighed: ClassVar[Weighed] = "count"


def own_seed(env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]) -> int:
    """The seed of an environment's generator, or one that is drawn from a generator which the user has set."""
    generator = env.np_random  # draws a seed from the operating system when there is none
    seed = int(env.np_random_seed or 0)
    return seed if seed >= 0 else int(generator.integers(2**63))


def check_render_mode(render_mode: str | None, modes: list[str]) -> None:
    """Refuse a render mode that does not exist."""
    if render_mode is not None and render_mode not in modes:
        raise LibraError(f"render_mode is {render_mode!r}, but it must be None or one of: {', '.join(modes)}.")


def render_scale(
    scales: Scales, index: int, mode: str, needle: npt.ArrayLike | None, reward: float | None, ended: bool
) -> Any:
    """One of the scales as a picture or as text."""
    from libra_gym.rendering import ScaleView, ansi_scale, draw_scale

    task = scales.task
    steps = int(scales.step[index])
    actions = scales.history[index, :steps].astype(int) - 1
    view = ScaleView(
        weights=tuple(task.pool[a] * task.tick for a in actions if a != task.end),
        value=float(scales.value[index] * task.tick),
        truth=float(scales.truth[index] * task.tick),
        step=steps,
        max_steps=task.max_steps,
        actions=task.labels,
        needle=None if needle is None else np.asarray(needle, dtype=np.float64),
        last_action=int(actions[-1]) if steps else None,
        ended=ended,
        patch_image=_patch_image(scales.bank, int(scales.patch[index])),
        reward=reward,
        tolerance=float(task.tolerance(scales.truth[index])) * task.tick,
    )
    return draw_scale(view) if mode == "rgb_array" else ansi_scale(view)


def _patch_image(bank: FeatureBank, patch: int) -> npt.NDArray[np.uint8] | None:
    """The patch as a picture. A bank keeps no photos, but drawn scenes, such as the demo's, can be drawn again."""
    from libra_gym.counts import PATCH

    image = bank.images[int(bank.image_of[patch])]
    scene = _scene(image.name) if bank.meta.get("dataset", "synthetic") == "synthetic" else None
    if scene is None or scene.shape[:2] != image.size:
        return None
    row, col = (bank.places[patch] * PATCH).tolist()
    return scene[row : row + PATCH, col : col + PATCH]


@lru_cache(maxsize=8)
def _scene(name: str) -> npt.NDArray[np.uint8] | None:
    """The drawn scene of this name, if it is the name of one."""
    from libra_gym.datasets.synthetic import redraw

    try:
        return redraw(name).image
    except LibraError:
        return None
