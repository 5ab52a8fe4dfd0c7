"""The weighing task against the paper, equation by equation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from libra_gym.errors import LibraError
from libra_gym.tables import TaskTables
from libra_gym.task import COUNT_POOL, INTERVAL_POOL, Rewards, WeighingTask

TASK = WeighingTask.intervals(60)
END = TASK.end
ACTION = {label: i for i, label in enumerate(TASK.labels)}


def reward(truth, value, label, step=0, task=TASK):
    """The reward of one situation."""
    return float(task.reward(np.array(truth), np.array(value), np.array(ACTION[label]), np.array(step)))


# ------------------------------------------------------------------------------------------------- hand-made examples


def test_the_pool_is_the_papers():
    assert TASK.labels == ("-10", "-5", "-2", "-1", "+1", "+2", "+5", "+10", "end")
    assert WeighingTask.counts(30.0).labels == (
        *("-5", "-2", "-1", "-0.5", "-0.2", "-0.1", "-0.05", "-0.02", "-0.01"),
        *("+0.01", "+0.02", "+0.05", "+0.1", "+0.2", "+0.5", "+1", "+2", "+5"),
        "end",
    )


def test_eq_4_the_weight_vector_starts_empty():
    empty = np.zeros((3, 8), dtype=np.uint8)
    assert not TASK.encode(empty).any()


def test_eq_5_the_value_is_the_sum_of_the_weights():
    value = np.array(0)
    for label in ("+10", "+10", "-2", "+1"):
        value = TASK.place(value, np.array(ACTION[label]))
    assert value == 19


def test_eq_5_an_illegal_weight_moves_the_value_to_the_end_of_its_range():
    assert TASK.place(np.array([3, 55]), np.array([ACTION["-10"], ACTION["+10"]])).tolist() == [0, 59]


def test_eq_6_and_7_a_weight_is_written_at_the_place_of_its_step():
    history = np.array([[ACTION["+10"] + 1, ACTION["-2"] + 1, ACTION["end"] + 1, 0, 0, 0, 0, 0]], dtype=np.uint8)
    assert TASK.encode(history)[0].tolist() == pytest.approx([1.0, -0.2, 0, 0, 0, 0, 0, 0])
    by_index = WeighingTask.intervals(60, weight_encoding="index")
    assert by_index.encode(history)[0].tolist() == [8, 3, 9, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("truth", "value", "expected"), [(7, 7, 5), (7, 6, -5), (7, 8, -5), (0, 0, 5)])
def test_eq_8_end_is_judged_by_the_error_that_it_found(truth, value, expected):
    assert reward(truth, value, "end", step=2) == expected


@pytest.mark.parametrize(
    ("truth", "value", "label", "expected"),
    [(7, 6, "+1", 5), (7, 7, "end", 5), (7, 7, "+1", -5), (7, 2, "+2", -5), (7, 2, "+5", 5)],
)
def test_eq_9_the_last_step_is_judged_by_the_error_that_it_leaves(truth, value, label, expected):
    assert reward(truth, value, label, step=7) == expected


@pytest.mark.parametrize(
    ("truth", "value", "label", "expected"),
    [
        (45, 0, "+10", 3),  # the optimal weight
        (45, 0, "+5", 1),  # another one that helps
        (45, 20, "-5", -1),  # one that does not
        (45, 45, "+1", -1),  # leaving the balance, but in range
        (7, 5, "+2", 3),
        (3, 0, "+2", 3),
    ],
)
def test_eq_10_guiding(truth, value, label, expected):
    assert reward(truth, value, label) == expected


@pytest.mark.parametrize(
    ("truth", "value", "label"),
    [
        (45, 0, "+10"),
        (7, 0, "+5"),
        (8, 0, "+10"),
        (3, 0, "+2"),
        (7, 7, "end"),
        (0, 8, "-5"),
        (0, 0, "end"),
        (20, 26, "-5"),
    ],
)
def test_eq_11_the_optimal_action(truth, value, label):
    assert TASK.labels[int(TASK.optimal(np.array(truth), np.array(value)))] == label


def test_eq_11_ties_go_to_the_first_weight_of_the_pool():
    count = WeighingTask.counts(10.0)
    assert count.labels[int(count.optimal(np.array(3.5), np.array(0)))] == "+0.02"  # 0.035: as near as +0.05


@pytest.mark.parametrize(
    ("truth", "value", "label", "expected"),
    [
        (10, 10, "+5", -1),  # 15 ≤ 1.5·10: in range, the guiding reward
        (10, 11, "+5", -3),  # 16 is out of range
        (10, 25, "-10", 3),  # 15 is back in range, and the optimal weight
        (10, 30, "-10", -1),  # 20 is still out of range, but the optimal weight
        (10, 30, "-5", -3),
    ],
)
def test_eq_12_and_14_squeezing(truth, value, label, expected):
    assert reward(truth, value, label) == expected


def test_eq_13_the_range_is_inclusive_and_one_sided():
    truth = np.array([10, 10, 10, 0, 0])
    value = np.array([0, 15, 16, 0, 1])
    assert TASK.in_range(truth, value).tolist() == [True, True, False, True, False]


def test_eq_15_a_weighing_ends_with_end_or_at_the_last_step():
    action = np.array([ACTION["end"], ACTION["+1"], ACTION["+1"]])
    assert TASK.ends(action, np.array([0, 6, 7])).tolist() == [True, False, True]


def test_ablation_without_guiding():
    task = TASK.with_rewards(guiding=False)
    assert reward(45, 0, "+10", task=task) == 1
    assert reward(10, 11, "+5", task=task) == -1
    assert reward(7, 7, "end", task=task) == 5


def test_ablation_without_force_ending():
    task = TASK.with_rewards(force_ending=False)
    assert reward(45, 0, "+10", step=7, task=task) == 3
    assert reward(7, 7, "end", step=7, task=task) == 5
    assert task.ends(np.array(ACTION["+1"]), np.array(7))


def test_ablation_without_squeezing():
    task = TASK.with_rewards(squeezing=False)
    assert reward(10, 30, "-10", task=task) == 3
    assert reward(10, 11, "+5", task=task) == -1


def test_the_tolerance_widens_the_range():
    assert reward(10, 11, "+5", task=TASK.with_rewards(squeeze_tolerance=0.9)) == -1


def test_a_continuous_scale_balances_within_half_its_smallest_weight():
    task = WeighingTask.counts(10.0)
    truth = np.array([123.4, 123.6])
    assert task.optimal(truth, np.array([123, 123])).tolist() == [task.end, task.pool.index(1)]


def test_a_share_of_the_truth_may_be_tolerated_where_it_is_more():
    task = WeighingTask.counts(30.0).with_rewards(balance_share=0.05)
    truth = np.array([0.0, 5.0, 2000.0])
    np.testing.assert_allclose(task.tolerance(truth), [0.5, 0.5, 100.0])
    assert task.balanced(truth, np.array([0, 6, 1900])).tolist() == [True, False, True]
    end, step = np.full(3, task.end), np.zeros(3, dtype=int)
    assert task.reward(truth, np.array([1, 5, 1899]), end, step).tolist() == [-5, 5, -5]
    assert task.optimal(truth, np.array([0, 0, 2100])).tolist() == [task.end, task.pool.index(5), task.end]
    assert torch.equal(
        task.balanced(torch.from_numpy(truth), torch.tensor([0, 6, 1900])), torch.tensor([True, False, True])
    )


# --------------------------------------------------------------------------------- a slow restatement from the paper


def slow_reward(truth, value, action, step, task):
    """The reward in plain Python, one situation at a time, written from the paper's text."""
    r = task.rewards
    weights = [*task.pool, 0]
    clip = lambda v: min(max(v, 0), task.ceiling)  # noqa: E731
    after = clip(value + weights[action])
    before_error, after_error = abs(truth - value), abs(truth - after)
    tolerance = max(r.balance_tolerance, r.balance_share * truth)
    if r.force_ending and step == task.max_steps - 1:
        return r.end if after_error <= tolerance else -r.end
    if action == task.end:
        return r.end if before_error <= tolerance else -r.end
    if not r.guiding:
        return r.fall if after_error < before_error else r.rise
    best, best_error = None, None
    if before_error <= tolerance:
        best = task.end
    else:
        for index, weight in enumerate(task.pool):
            if 0 <= value + weight <= task.ceiling:
                error = abs(truth - (value + weight))
                if best is None or error < best_error:
                    best, best_error = index, error
    guided = action == best and after_error < before_error
    if r.squeezing and after > (1 + r.squeeze_tolerance) * truth:
        return r.squeeze_guide if guided else r.squeeze
    if guided:
        return r.guide
    return r.fall if after_error < before_error else r.rise


switches = st.builds(
    Rewards,
    guiding=st.booleans(),
    force_ending=st.booleans(),
    squeezing=st.booleans(),
    squeeze_tolerance=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    balance_tolerance=st.sampled_from([0.0, 1.0]),
    balance_share=st.sampled_from([0.0, 0.25]),
)
tasks = st.builds(WeighingTask, st.integers(0, 80), max_steps=st.integers(1, 16), rewards=switches)


@given(tasks, st.data())
def test_every_reward_equals_the_slow_restatement(task, data):
    truth, value = (data.draw(st.integers(0, task.ceiling)) for _ in range(2))
    step = data.draw(st.integers(0, task.max_steps - 1))
    expected = [slow_reward(truth, value, a, step, task) for a in range(task.num_actions)]
    arrays = [np.array([x]) for x in (truth, value, step)]
    assert task.all_rewards(*arrays)[0].tolist() == expected
    assert task.all_rewards(*map(torch.from_numpy, arrays))[0].tolist() == expected


@given(
    st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 18), st.integers(0, 7), st.sampled_from([0.0, 0.05, 0.5])
)
def test_continuous_rewards_equal_the_slow_restatement(truth, value, action, step, share):
    task = WeighingTask.counts(30.0).with_rewards(balance_share=share)
    arrays = [np.array([x]) for x in (truth / 4 * 3, value, action, step)]
    assert task.reward(*arrays)[0] == slow_reward(truth / 4 * 3, value, action, step, task)


@given(tasks)
def test_tables_equal_the_task_in_every_situation(task):
    tables = TaskTables(task)
    levels, actions = np.arange(task.ceiling + 1), np.arange(task.num_actions)
    truth, value, action, step = (a.ravel() for a in np.meshgrid(levels, levels, actions, [0, task.max_steps - 1]))
    for looked_up, computed in zip(
        tables.outcome(truth, value, action, step), task.outcome(truth, value, action, step)
    ):
        np.testing.assert_array_equal(looked_up, computed)
    np.testing.assert_array_equal(tables.legal(levels), task.legal(levels))
    np.testing.assert_array_equal(tables.all_rewards(truth, value, step), task.all_rewards(truth, value, step))


@given(tasks, st.data())
def test_numpy_and_torch_agree(task, data):
    draw = lambda top: np.array(data.draw(st.lists(st.integers(0, top), min_size=5, max_size=5)))  # noqa: E731
    situation = [draw(top) for top in (task.ceiling, task.ceiling, task.end, task.max_steps - 1)]
    ours, theirs = task.outcome(*situation), task.outcome(*map(torch.from_numpy, situation))
    for a, b in zip(ours, theirs):
        assert a.dtype == b.numpy().dtype
        np.testing.assert_array_equal(a, b.numpy())


@given(tasks, st.data())
def test_the_optimal_action_is_legal_and_lessens_the_error(task, data):
    truth, value = (np.array(data.draw(st.integers(0, task.ceiling))) for _ in range(2))
    best = task.optimal(truth, value)
    assert task.legal(value)[best]
    if best != task.end:
        assert abs(truth - task.place(value, best)) < abs(truth - value)


@given(tasks)
def test_end_is_always_legal_and_others_keep_the_value_in_range(task):
    values = np.arange(task.ceiling + 1)
    legal = task.legal(values)
    assert legal[:, task.end].all()
    after = values[:, None] + np.array([*task.pool, 0])
    np.testing.assert_array_equal(legal, (after >= 0) & (after <= task.ceiling))


@given(tasks)
def test_a_task_survives_json(task):
    assert WeighingTask.from_dict(task.to_dict()) == task


@pytest.mark.parametrize(
    "settings",
    [
        {"ceiling": -1},
        {"ceiling": 5, "pool": (1, 0, -1)},
        {"ceiling": 5, "pool": ()},
        {"ceiling": 5, "max_steps": 0},
        {"ceiling": 5, "weight_encoding": "one-hot"},
    ],
)
def test_impossible_scales_are_refused(settings):
    with pytest.raises(LibraError):
        WeighingTask(**settings)


def test_a_negative_tolerance_is_refused():
    with pytest.raises(LibraError, match=r"-0\.1"):
        Rewards(squeeze_tolerance=-0.1)


def test_pools_are_symmetric():
    for pool in (INTERVAL_POOL, COUNT_POOL):
        assert sorted(-w for w in pool) == list(pool)


# ------------------------------------------------------------------------------------------- rewards by remaining error

PEOPLE = tuple(np.exp(0.1 * np.arange(40)) - 1.0)
BY_ERROR = WeighingTask.intervals(40, people=PEOPLE, rewards=Rewards(shape="error"))


def deviance(y, x):
    y, x = y + 0.5, x + 0.5
    return y * np.log(y / x) - (y - x)


@given(st.integers(0, 39), st.lists(st.integers(0, 7), max_size=8))
def test_rewards_by_error_add_up_to_what_was_taken_off(truth, actions):
    value, total = np.array(0), 0.0
    for step, action in enumerate(actions):
        outcome = BY_ERROR.outcome(np.array(truth), value, np.array(action), np.array(step))
        value, total = outcome.value, total + float(outcome.reward)
    taken_off = deviance(PEOPLE[truth], PEOPLE[0]) - deviance(PEOPLE[truth], PEOPLE[int(value)])
    assert total == pytest.approx(taken_off, abs=1e-4)


def test_ending_neither_adds_nor_takes_off():
    assert reward(20, 7, "end", task=BY_ERROR) == 0
    assert reward(20, 20, "end", step=7, task=BY_ERROR) == 0


@given(st.lists(st.integers(0, 39), min_size=1, max_size=30))
def test_the_best_value_for_an_unsure_agent_is_the_mean(truths):
    """The value with the least expected error is, as near as the intervals allow, the mean number of people."""
    expected = np.array([np.mean([deviance(PEOPLE[g], x) for g in truths]) for x in PEOPLE])
    best, mean = PEOPLE[int(expected.argmin())], np.mean([PEOPLE[g] for g in truths])
    below = max(p for p in PEOPLE if p <= mean + 1e-9)
    above = min((p for p in PEOPLE if p >= mean - 1e-9), default=PEOPLE[-1])
    assert below - 1e-9 <= best <= above + 1e-9


@given(st.data())
def test_tables_and_torch_agree_on_rewards_by_error(data):
    draw = lambda top: np.array(data.draw(st.lists(st.integers(0, top), min_size=5, max_size=5)))  # noqa: E731
    situation = [draw(top) for top in (39, 39, BY_ERROR.end, 7)]
    expected = BY_ERROR.outcome(*situation).reward
    np.testing.assert_allclose(TaskTables(BY_ERROR).outcome(*situation).reward, expected, rtol=1e-6)
    np.testing.assert_allclose(BY_ERROR.outcome(*map(torch.from_numpy, situation)).reward, expected, rtol=1e-6)


def test_real_valued_counts_have_rewards_by_error_too():
    task = WeighingTask.counts(30.0).with_rewards(shape="error")
    gain = task.reward(np.array(512.0), np.array(0), np.array(17), np.array(0))  # five of 5.12 people
    assert gain == pytest.approx(deviance(5.12, 0.0) - deviance(5.12, 5.0), rel=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: WeighingTask.intervals(40, rewards=Rewards(shape="error")),
        lambda: WeighingTask.intervals(40, people=(1.0, 2.0)),
        lambda: Rewards(shape="round"),
        lambda: Rewards(error_offset=0.0),
    ],
)
def test_impossible_rewards_by_error_are_refused(make):
    with pytest.raises(LibraError):
        make()


def test_torch_and_numpy_draw_the_line_of_balance_in_the_same_place():
    task = WeighingTask.intervals(62, rewards=Rewards(balance_share=0.58))
    truth, value = np.array([50]), np.array([21])
    assert task.balanced(truth, value).tolist() == task.balanced(torch.tensor([50]), torch.tensor([21])).tolist()


def test_what_does_not_fit_the_bytes_of_a_weighing_is_refused():
    pool = tuple(weight for weight in range(-64, 65) if weight)
    with pytest.raises(LibraError, match="128 weights and max_steps 8"):
        WeighingTask(ceiling=10, pool=pool)
    with pytest.raises(LibraError, match="max_steps 300"):
        WeighingTask(ceiling=10, max_steps=300)


def test_numpy_numbers_are_plain_ones_afterwards():
    assert type(Rewards(end=np.float32(4.0)).end) is float


def test_numpy_and_torch_agree_where_a_share_of_the_truth_is_not_exact():
    """0.58 of 50 is 28.999… in double precision and 29 in single."""
    task = WeighingTask.intervals(90).with_rewards(squeeze_tolerance=0.58, balance_share=0.58)
    situation = [np.array([x]) for x in (50, 74, INTERVAL_POOL.index(5), 0)]
    ours, theirs = task.outcome(*situation), task.outcome(*map(torch.from_numpy, situation))
    assert ours.value.tolist() == [79]
    assert ours.reward.tolist() == theirs.reward.tolist() == [-3.0]
