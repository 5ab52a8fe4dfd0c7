"""Intervals that hold what they promise."""

import numpy as np
import pytest

from libra_gym.errors import LibraError
from libra_gym.uncertainty import Uncertainty


def crowds(number, power, seed=0, spread=0.8):
    """Counts whose errors grow like a power of them."""
    rng = np.random.default_rng(seed)
    counts = np.exp(rng.uniform(2, 7, number))
    return counts, np.maximum(counts + spread * rng.standard_normal(number) * (counts + 1) ** power, 0)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("power", [0.5, 0.75, 1.0])
def test_new_photos_lie_in_the_interval_as_often_as_stated(coverage, power):
    counts, people = crowds(4000, power, spread=0.3)
    interval = Uncertainty.fit(counts[:500], people[:500], coverage)
    ends = np.array([interval.interval(count) for count in counts[500:]])
    held = (ends[:, 0] <= people[500:]) & (people[500:] <= ends[:, 1])
    assert held.mean() == pytest.approx(coverage, abs=0.05)
    assert interval.measured == pytest.approx(coverage, abs=0.03)


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_the_power_is_found(power):
    assert Uncertainty.fit(*crowds(1000, power, spread=0.3)).power == power


def test_emptier_and_fuller_photos_are_told_apart():
    """Errors that only crowds have: the halves' own shares show it."""
    counts = np.linspace(1, 1000, 100)
    people = np.where(counts < 500, counts, counts * np.where(np.arange(100) % 2, 1.3, 0.4))
    interval = Uncertainty.fit(counts, people)
    assert interval.measured_sparse == 1.0
    assert interval.measured_crowded < 0.7


def test_an_interval_holds_its_count_and_ends_at_nobody():
    interval = Uncertainty.fit(*crowds(50, 0.75))
    for count in (0.0, 0.4, 3.0, 5000.0):
        low, high = interval.interval(count)
        assert 0 <= low <= count <= high


def test_the_quantile_of_few_photos_is_the_conformal_one():
    """Of nine errors the ⌈0.8 · 10⌉th: the eighth."""
    people = np.full(9, 100.0)
    interval = Uncertainty.fit(people + np.arange(9), people)
    error = np.sort(np.arange(9) / (people + np.arange(9) + 1) ** interval.power)
    assert interval.width == pytest.approx(error[7])


def test_few_photos_are_said_to_be_few():
    assert "chance" in str(Uncertainty.fit(*crowds(30, 1.0)))
    assert "30 validation photos" in str(Uncertainty.fit(*crowds(30, 1.0)))
    assert "chance" not in str(Uncertainty.fit(*crowds(300, 1.0)))


@pytest.mark.parametrize("number", [0, 1, 4])
def test_too_few_photos_are_refused(number):
    with pytest.raises(LibraError, match=f"at least 5.*there are {number}"):
        Uncertainty.fit(*crowds(number, 1.0))


@pytest.mark.parametrize("coverage", [0.0, 1.0, 80.0])
def test_a_coverage_is_a_share(coverage):
    with pytest.raises(LibraError, match="between 0 and 1"):
        Uncertainty.fit(*crowds(50, 1.0), coverage)


def test_plain_types_and_back():
    interval = Uncertainty.fit(*crowds(50, 1.0))
    assert Uncertainty(**interval.to_dict()) == interval


def test_counts_and_true_numbers_must_be_as_many():
    with pytest.raises(LibraError, match=r"counts of shape \(5,\) and true numbers of shape \(3,\)"):
        Uncertainty.fit([1, 2, 3, 4, 5], [1, 2, 3])
