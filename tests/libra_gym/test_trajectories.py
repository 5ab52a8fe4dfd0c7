"""Values, returns and needle readings of a weighing follow from its actions."""

import numpy as np
import pytest
import torch
from banks import make_bank

from libra_gym.evaluation import evaluate, weigh
from libra_gym.network import NetworkSettings, ScaleNetwork
from libra_gym.task import WeighingTask
from libra_gym.trajectories import read_needle, returns_to_go, true_values, values_before
from libra_gym.weigher import Weigher

BANK = make_bank()


def make_weigher(continuous: bool = False) -> Weigher:
    """An untrained agent; dropout would show if it were left on."""
    torch.manual_seed(3)
    task = WeighingTask.counts(20.0) if continuous else WeighingTask.intervals(BANK.num_intervals)
    settings = NetworkSettings(
        channels=16, hidden=(32,), actions=task.num_actions, q_scale=1.0, init_std=None, dropout=0.3
    )
    return Weigher(ScaleNetwork(settings), task, None if continuous else BANK.quantizer)


@pytest.mark.parametrize("continuous", [False, True])
def test_values_end_where_the_weighing_ended(continuous):
    weigher = make_weigher(continuous)
    weighed = weigher.weigh(BANK)
    values = values_before(weighed.actions, weigher.task)
    assert (values[:, 0] == 0).all()
    np.testing.assert_array_equal(values[:, -1], weighed.value)
    assert values.any()


def test_values_rest_after_the_end():
    task = WeighingTask.intervals(57)
    values = values_before(np.array([[7, 3, task.end, -1], [0, 4, 4, 4]]), task)
    np.testing.assert_array_equal(values, [[0, 10, 9, 9, 9], [0, 0, 1, 2, 3]])  # an illegal weight stays in range


@pytest.mark.parametrize("continuous", [False, True])
def test_the_return_of_the_first_action_is_the_evaluators(continuous):
    weigher = make_weigher(continuous)
    weighed = weigh(weigher, BANK, weigher.task)
    returns = returns_to_go(weighed, BANK, weigher.task, gamma=0.7)
    expected = evaluate(weigher, BANK, task=weigher.task, gamma=0.7).mean_return
    assert returns[:, 0].mean() == pytest.approx(expected)
    np.testing.assert_array_equal(np.isnan(returns), weighed.actions < 0)


def test_the_agent_took_what_the_needle_pointed_at():
    weigher = make_weigher()
    weighed = weigher.weigh(BANK)
    patches = np.array([5, 0, 30])
    readings = read_needle(weigher.network.eval(), BANK, weigher.task, weighed, patches)
    assert readings.shape == (3, 8, 9)
    taken = weighed.actions[patches]
    np.testing.assert_array_equal(np.isnan(readings).all(-1), taken < 0)
    legal = weigher.task.legal(values_before(taken, weigher.task)[:, :-1])
    pointed = np.where(legal & np.isfinite(readings), readings, -np.inf).argmax(-1)
    np.testing.assert_array_equal(pointed[taken >= 0], taken[taken >= 0])


def test_truth_is_in_ticks():
    np.testing.assert_array_equal(true_values(BANK, WeighingTask.intervals(BANK.num_intervals)), BANK.intervals)
    np.testing.assert_allclose(true_values(BANK, WeighingTask.counts(20.0)), BANK.counts * 100, rtol=1e-6)
