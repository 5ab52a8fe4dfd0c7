"""Which runs each of the paper's tables needs (Sec. 3 of the paper)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from experiments.reproduce.jobs import Job
from experiments.reproduce.planner import Planner, Recipe, Request
from libra_gym.errors import LibraError
from libra_gym.task import Rewards, WeighingTask

PLACES = {
    "SHT A": "shanghaitech_a",
    "SHT B": "shanghaitech_b",
    "UCF-QNRF": "ucf_qnrf",
    "UCF_CC_50": "ucf_cc_50",
}
TRANSFERS = {"A": "shanghaitech_a", "B": "shanghaitech_b", "QNRF": "ucf_qnrf"}

LIBRA = Recipe("libra_dqn")
"""LibraNet as we train it: rewards by remaining error."""
PRESETS = {"shanghaitech_b": "sparse"}
"""Data sets with another preset of LibraNet than `default`: most patches of B are empty."""
PAPER = Recipe("libra_dqn", "paper")
"""LibraNet by the paper's own settings, a hundred epochs of them."""
CLASSIFIER = Recipe("head_classification")
REGRESSOR = Recipe("head_regression")
IMITATION = Recipe("dagger")

ON_ONE_DATASET = ("ablation", "game", "steps", "tolerance", "plugin", "seeds")
"""Tables that the paper made on ShanghaiTech A, and that can be made on any data set."""
PAPER_SEEDS = 6
"""Runs behind the paper's mean ± std."""


@dataclass(frozen=True)
class Entry:
    """A line of a table: which evaluations its figures come from, or why there are none."""

    row: str
    where: str
    judged: str = ""
    """The split that the figures are of."""
    runs: tuple[tuple[Job, ...], ...] = ()
    """For each seed, an evaluation for each fold."""
    reason: str | None = None

    @property
    def jobs(self) -> list[Job]:
        """All evaluations."""
        return [job for seed in self.runs for job in seed]


Builder: TypeAlias = Callable[[Planner], list[Entry]]


def build(table: str, planner: Planner) -> list[Entry]:
    """The lines of a table, in the paper's order."""
    request = planner.request
    if request.dataset != Request.dataset:
        planner.note(
            f"The paper has this table of {place(Request.dataset)} alone; these are the same rows on "
            f"{place(request.dataset)}."
        )
    if request.preset == "paper":
        presets = "presets `paper` and `continuous_paper`" if table == "plugin" else "preset `paper`"
        planner.note(f"LibraNet is trained by the {presets}: the paper's own settings.")
    return TABLES[table](planner)


def _entry(planner: Planner, row: str, recipe: Recipe, **settings: str | None) -> Entry:
    """A line about the data set that the request names, or the reason why it cannot be run."""
    dataset = planner.request.dataset
    return _line(planner, row, place(dataset), recipe, dataset, **settings)


def _line(
    planner: Planner, row: str, where: str, recipe: Recipe, dataset: str, target: str | None = None, **settings: Any
) -> Entry:
    try:
        runs = planner.runs(recipe, dataset, target=target, **settings)
        return Entry(row, where, planner.judged(target or dataset), runs)
    except LibraError as error:
        return Entry(row, where, reason=str(error))


def place(dataset: str) -> str:
    """What the paper calls a data set; its own name where the paper has none."""
    return next((where for where, name in PLACES.items() if name == dataset), dataset)


def libra(planner: Planner, dataset: str | None = None) -> Recipe:
    """LibraNet on this data set, by the request's preset."""
    if planner.request.preset == "paper":
        return PAPER
    return replace(LIBRA, preset=PRESETS.get(dataset or planner.request.dataset, LIBRA.preset))


def paper_rewards(planner: Planner) -> Recipe:
    """LibraNet with the paper's rewards.

    By our preset it keeps our optimiser, and each reward speaks for its own step alone (γ = 0): with a discount of 0.9
    it pays to dawdle (docs/experiments/paper-settings.md), and after an epoch most people are missed.
    """
    if planner.request.preset == "paper":
        return PAPER
    planner.note(_PAPER_REWARDS_NOTE.format(preset=libra(planner).preset))
    return libra(planner).but(env__rewards__shape="paper", quantile=0.5, loss="mse")


def real_counts(planner: Planner) -> Recipe:
    """Weighing real-valued counts, for backbones that were trained by regression."""
    if planner.request.preset == "paper":
        return replace(PAPER, preset="continuous_paper")
    return libra(planner).but(env__env_id="LibraWeighingContinuous-v0")


def _sota(planner: Planner) -> list[Entry]:
    return [_line(planner, "LibraNet", where, libra(planner, dataset), dataset) for where, dataset in PLACES.items()]


def _cross(planner: Planner) -> list[Entry]:
    given = " (what a given backbone has learnt from before is not known here)" if planner.request.backbones else ""
    planner.note(
        f"Backbone{given} and agent are trained on the first data set and see the second only when they are judged."
    )
    return [
        _line(planner, "LibraNet", f"{source} → {target}", libra(planner, learnt), learnt, seen)
        for source, learnt in TRANSFERS.items()
        for target, seen in TRANSFERS.items()
        if source != target
    ]


def _ablation(planner: Planner) -> list[Entry]:
    planner.note(_REFITTED)
    full = paper_rewards(planner)
    planner.note(
        "Imitation Learning: DAgger, the optimal action asked for on the situations that the learner gets into."
    )
    rows = {
        "BCNet": CLASSIFIER,
        "Imitation Learning": IMITATION,
        "W/O Guiding": full.but(env__rewards__guiding=False),
        "W/O Force Ending": full.but(env__rewards__force_ending=False),
        "W/O Squeezing": full.but(env__rewards__squeezing=False),
        "Full Designs": full,
    }
    if planner.request.preset == "default":
        rows["our default rewards"] = libra(planner)
    return [_entry(planner, row, recipe) for row, recipe in rows.items()]


def _game(planner: Planner) -> list[Entry]:
    planner.note(_REFITTED)
    rows = {"BCNet": CLASSIFIER, "LibraNet": libra(planner)}
    return [_entry(planner, row, recipe) for row, recipe in rows.items()]


def _steps(planner: Planner) -> list[Entry]:
    rows = {steps: libra(planner).but(env__max_steps=steps) for steps in range(4, 17, 2)}
    rows[WeighingTask.max_steps] = libra(planner)  # a run of the other tables
    return [_entry(planner, str(steps), recipe) for steps, recipe in rows.items()]


def _tolerance(planner: Planner) -> list[Entry]:
    full = paper_rewards(planner)
    rows = {share: full.but(env__rewards__squeeze_tolerance=share) for share in (0.1, 0.3, 0.5, 0.7, 0.9)}
    rows[Rewards.squeeze_tolerance] = full
    return [_entry(planner, str(share), recipe) for share, recipe in rows.items()]


def _plugin(planner: Planner) -> list[Entry]:
    planner.note(_REFITTED)
    planner.note(
        "Regression and TasselNetv2† with LibraNet weigh real-valued counts with the paper's eighteen weights."
    )
    weigh, weigh_counts = libra(planner), real_counts(planner)
    rows: dict[str, tuple[Recipe, str | None]] = {
        "ImageNet Regression": (REGRESSOR, None),
        "ImageNet Classification": (CLASSIFIER, None),
        "ImageNet Regression+LibraNet": (weigh_counts, None),
        "ImageNet Classification+LibraNet": (weigh, None),
        "TasselNetv2†": (REGRESSOR, "tasselnetv2"),
        "TasselNetv2†+LibraNet": (weigh_counts, "tasselnetv2"),
        "Blockwise Classification": (CLASSIFIER, "bcnet"),
        "Blockwise Classification+LibraNet": (weigh, "bcnet"),
    }
    return [_entry(planner, row, recipe, method=method) for row, (recipe, method) in rows.items()]


def _seeds(planner: Planner) -> list[Entry]:
    if planner.request.seeds is None:
        number = 2 if planner.request.budget == "small" else PAPER_SEEDS
        planner.request = replace(planner.request, seeds=number)
    planner.note(f"Seeds 0 to {(planner.request.seeds or 1) - 1}; ± is the standard deviation of the sample (n − 1).")
    return [_entry(planner, "LibraNet", libra(planner))]


def _speed(planner: Planner) -> list[Entry]:
    planner.note("No patch of ours ends before its eighth step, so that LibraNet's share is the most it can be.")
    return [Entry("LibraNet", "1080×720", "one photo of noise", ((planner.speed(),),))]


_REFITTED = (
    "BCNet (Blockwise Classification) and TasselNetv2† without LibraNet: a linear head, trained on the same frozen "
    "features of the pre-trained backbone as the agent."
)
_PAPER_REWARDS_NOTE = (
    "Rows about the paper's rewards: preset `{preset}` with env.rewards.shape=paper, quantile=0.5 and loss=mse, so "
    "γ = 0 instead of 0.9. A reward then speaks of the step that earns it alone; that of force ending, of the eighth."
)

TABLES: dict[str, Builder] = {
    "sota": _sota,
    "cross": _cross,
    "ablation": _ablation,
    "game": _game,
    "steps": _steps,
    "tolerance": _tolerance,
    "plugin": _plugin,
    "seeds": _seeds,
    "speed": _speed,
}
