"""What perfect agents reach."""

import numpy as np
import pytest

from libra_gym.errors import LibraError
from libra_gym.oracle import expert, solve
from libra_gym.task import WeighingTask


@pytest.mark.parametrize("max_steps", [4, 8, 12])
def test_the_expert_balances_every_interval_that_the_steps_allow(max_steps):
    task = WeighingTask.intervals(81, max_steps=max_steps)
    reachable = {0}
    for _ in range(max_steps):
        reachable |= {v + w for v in reachable for w in task.pool if 0 <= v + w <= task.ceiling}
    fewest = np.array([_fewest_weights(task, truth) for truth in range(81)])
    result = expert(task)
    np.testing.assert_array_equal(result.balanced(), fewest <= max_steps)
    assert set(np.flatnonzero(result.balanced())) <= reachable


def _fewest_weights(task, truth):
    """The fewest weights that make `truth`, by breadth-first search."""
    frontier, seen, depth = {0}, {0}, 0
    while truth not in frontier:
        frontier = {v + w for v in frontier for w in task.pool if 0 <= v + w <= task.ceiling} - seen
        seen |= frontier
        depth += 1
    return depth


def test_the_expert_ends_as_soon_as_it_balances():
    result = expert(WeighingTask.intervals(60))
    assert result.steps[0] == 1  # nobody: `end` at once
    assert result.steps[45] == 6  # four tens, a five, `end`
    assert result.returns[45] == pytest.approx(sum(3 * 0.9**t for t in range(5)) + 5 * 0.9**5)


def test_the_optimum_is_at_least_as_good_as_the_expert_everywhere():
    task = WeighingTask.intervals(62)
    assert (solve(task).returns >= expert(task).returns - 1e-5).all()


def test_following_the_optimum_earns_what_it_promises():
    optimum = solve(WeighingTask.intervals(62), gamma=0.9)
    followed = optimum.weighings()
    np.testing.assert_allclose(followed.returns, optimum.returns, atol=1e-5)
    assert followed.balanced().all()


def test_under_the_papers_rewards_it_pays_to_leave_the_balance_and_come_back():
    task = WeighingTask.intervals(62)
    optimum, greedy = solve(task, gamma=0.9), expert(task)
    assert optimum.returns[5] > greedy.returns[5] + 1
    assert optimum.weighings().steps[5] == 8
    assert greedy.steps[5] == 2


def test_the_optimum_equals_an_exhaustive_search():
    task = WeighingTask.intervals(7, max_steps=3)

    def best(truth, value, step):
        returns = []
        for action in np.flatnonzero(task.legal(np.array(value))):
            after, reward, ended = task.outcome(np.array(truth), np.array(value), np.array(action), np.array(step))
            returns.append(float(reward) + (0.0 if ended else 0.9 * best(truth, int(after), step + 1)))
        return max(returns)

    np.testing.assert_allclose(solve(task).returns, [best(g, 0, 0) for g in range(7)], rtol=1e-6)


def test_the_expert_balances_real_valued_counts_up_to_18_people():
    """Eight steps: two weights for each of three digits, and two or three fives; beyond that the error grows slowly."""
    task = WeighingTask.counts(60.0)
    result = expert(task, np.arange(0.0, 6000.0, 0.25))
    people, error = result.truth * task.tick, np.abs(result.truth - result.value) * task.tick
    assert error[people <= 18.0].max() == pytest.approx(0.005)
    assert people[error > 0.0051].min() == pytest.approx(18.3275)
    assert error[people <= 25.0].max() == pytest.approx(0.05)
    assert error[people <= 35.0].max() == pytest.approx(0.5)
    assert result.value.max() * task.tick == 40.0  # eight fives
    balanced = task.balanced(result.truth, result.value)
    np.testing.assert_array_equal(balanced, error <= 0.005 + 1e-9)
    assert (result.actions[balanced & (result.steps < 8)] == task.end).any(1).all()


def test_more_steps_balance_more_people():
    people = np.arange(0.0, 50.0, 0.01)
    for steps, most in ((8, 18.0), (12, 38.0)):
        task = WeighingTask.counts(50.0, max_steps=steps)
        balanced = task.balanced(people / task.tick, expert(task, people / task.tick).value)
        assert balanced[people <= most].all()
        assert not balanced.all()


def test_a_tolerated_share_lets_the_expert_end_sooner():
    people = np.arange(0.0, 40.0, 0.01)
    strict, wide = (WeighingTask.counts(40.0).with_rewards(balance_share=share) for share in (0.0, 0.05))
    results = [expert(task, people / task.tick) for task in (strict, wide)]
    assert results[1].steps.mean() < results[0].steps.mean() - 1
    assert wide.balanced(results[1].truth, results[1].value).all()


def test_real_valued_truths_can_be_solved_too():
    task = WeighingTask.counts(2.0)
    truth = [0.0, 3.3, 51.0, 199.6]
    optimum = solve(task, truth)
    assert (optimum.returns >= expert(task, truth).returns - 1e-5).all()
    assert optimum.weighings().balanced(0.5).all()


def test_a_task_of_too_many_situations_is_refused_before_memory_is_taken():
    with pytest.raises(LibraError, match="situations, but at most"):
        solve(WeighingTask.counts(33.1))


def test_where_no_weight_is_legal_the_expert_ends():
    task = WeighingTask(ceiling=7, pool=(5,))
    assert task.optimal(np.array([7, 7]), np.array([0, 5])).tolist() == [0, task.end]
    assert expert(task, [7]).actions[0, :2].tolist() == [0, task.end]
