"""`libra figures`: how a model counts a whole bank, in four figures (docs/figures.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from experiments.commands.show import save_figure
from libra_gym.errors import LibraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.runs.counted import CountedBank, Weighing


def figures(
    model: Annotated[Path, typer.Argument(help="The directory of a run (its best model), or a model file.")],
    bank: Annotated[str, typer.Option(help="A feature directory, a bank file, or a name such as 'demo'.")],
    out: Annotated[Path, typer.Option(help="The directory that the figures go to.")],
    split: Annotated[str, typer.Option(help="A split, or several joined by '+'.")] = "validation",
    gamma: Annotated[
        float | None, typer.Option(min=0, max=1, help="The discount of the Q values; the run's own if not given.")
    ] = None,
) -> None:
    """Draw the actions at each step, the confusion of intervals, the calibration of Q values, and the counts."""
    from experiments.commands.evaluate import check_features
    from experiments.runs.counted import count_bank, discount_of
    from experiments.runs.counter import HeadCounter, open_joined
    from libra_gym.banks import load_bank
    from libra_gym.rendering import confusion_figure, scatter_figure

    counter, _ = open_joined(model)
    if gamma is not None and isinstance(counter, HeadCounter):
        raise LibraError("--gamma is the discount of Q values, and a one-step head has none; leave it out.")
    opened = load_bank(bank).split(split).wholes()
    check_features(counter.about, opened)
    counted = count_bank(counter, opened)
    names = [image.name for image in counted.bank.images]
    people = counted.bank.people.double().numpy()
    save_figure(scatter_figure(people, counted.totals, names), out / "counts.png")
    truth = counted.bank.intervals.cpu().numpy()
    save_figure(confusion_figure(truth, counted.intervals, counted.bank.quantizer.values), out / "intervals.png")
    weighing = counted.weighing
    if weighing is None:
        _note("a one-step head takes no actions, so there are no figures of actions and needle")
        return
    save_figure(_actions(counted, weighing), out / "actions.png")
    discount = discount_of(model) if gamma is None else gamma
    if weighing.needle is None:
        _note("this agent has no Q values, so there is no figure of the needle")
    elif discount is None:
        _note("neither the model nor --gamma tells the discount of its Q values, so there is no figure of the needle")
    else:
        save_figure(_calibration(counted, weighing, discount), out / "needle.png")


def _note(text: str) -> None:
    Console().print(text, highlight=False, markup=False)


def _actions(counted: CountedBank, weighing: Weighing) -> Figure:
    from libra_gym.rendering import actions_figure
    from libra_gym.trajectories import true_values, values_before

    task, actions = weighing.task, weighing.weighed.actions
    truth = true_values(counted.bank, task)[:, None]
    optimal = task.optimal(truth, values_before(actions, task)[:, :-1])
    return actions_figure(actions, optimal, task.labels)


def _calibration(counted: CountedBank, weighing: Weighing, gamma: float) -> Figure:
    import numpy as np

    from libra_gym.rendering import calibration_figure
    from libra_gym.trajectories import read_needle, returns_to_go, true_values, values_before

    task, actions = weighing.task, weighing.weighed.actions
    assert weighing.needle is not None
    error = (true_values(counted.bank, task)[:, None] - values_before(actions, task)[:, :-1]) * task.tick
    readings = read_needle(weighing.needle, counted.bank, task, weighing.weighed, np.arange(len(counted.bank)))
    taken = actions >= 0
    q = np.take_along_axis(readings, np.maximum(actions, 0)[..., None].astype(np.int64), -1)[..., 0]
    returns = returns_to_go(weighing.weighed, counted.bank, task, gamma)
    unit = "intervals" if task.tick == 1.0 else "people"
    return calibration_figure(error[taken], actions[taken], q[taken], returns[taken], task.labels, unit=unit)
