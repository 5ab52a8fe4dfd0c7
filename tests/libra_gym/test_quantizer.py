"""Counts ⇄ intervals, against the appendix."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from libra_gym.errors import LibraError
from libra_gym.quantizer import NOBODY, Quantizer

counts = st.floats(0, 60, allow_nan=False)
LOG = Quantizer.log(62)


def by_the_appendix(count):
    """Eq. 21 with the threshold for nobody."""
    if count < NOBODY:
        return 0
    return max(math.floor((math.log(count) + 2) / 0.1 + 2), 1)


@given(counts)
def test_eq_21_intervals(count):
    expected = by_the_appendix(count)
    edge = min(abs(count - e) for e in LOG.edges)
    if edge > 1e-9:  # at an edge itself, floating point decides
        assert LOG.quantize(np.array(count)) == min(expected, 61)


def test_eq_22_values():
    assert LOG.values[0] == 0
    assert LOG.values[1] == pytest.approx(math.exp(-2) / 2)
    for c in (2, 10, 56):
        assert LOG.values[c] == pytest.approx((math.exp(-2 + 0.1 * (c - 2)) + math.exp(-2 + 0.1 * (c - 1))) / 2)


def test_the_authors_57_intervals_end_at_33_people():
    """Interval 56 is the top one of the authors' program."""
    assert Quantizer.log(57).edges[-1] == pytest.approx(math.exp(-2 + 0.1 * 54))
    assert math.exp(-2 + 0.1 * 55) == pytest.approx(33.1, abs=0.05)


@given(st.integers(2, 90))
def test_every_interval_survives_the_round_trip(intervals):
    quantizer = Quantizer.log(intervals)
    every = np.arange(intervals)
    np.testing.assert_array_equal(quantizer.quantize(quantizer.dequantize(every)), every)


@given(st.lists(counts, min_size=1, max_size=200))
def test_a_fitted_quantizer_is_just_large_enough_and_off_by_at_most_half_a_bin(people):
    quantizer = Quantizer.fit_log(people)
    intervals = quantizer.quantize(np.array(people))
    assert intervals.max() == quantizer.num_intervals - 1 or quantizer.num_intervals == 2
    error = np.abs(quantizer.dequantize(intervals) - np.array(people))
    half_a_bin = (math.exp(0.1) - 1) / 2  # of a bin's lower edge
    assert (error <= np.maximum(half_a_bin * np.array(people), math.exp(-2) / 2) + 1e-9).all()


@given(st.lists(counts, min_size=1, max_size=200))
def test_mean_values_keep_the_total(people):
    quantizer = Quantizer.fit_log(people, readout="mean")
    total = quantizer.dequantize(quantizer.quantize(np.array(people))).sum()
    nobody = sum(p for p in people if p < NOBODY)
    assert total == pytest.approx(sum(people) - nobody, abs=1e-6)


@given(st.lists(st.integers(0, 30), min_size=1))
def test_whole_people_survive_integer_bins(people):
    quantizer = Quantizer.integer(30)
    np.testing.assert_array_equal(quantizer.dequantize(quantizer.quantize(np.array(people))), people)


@given(st.lists(counts, min_size=1, max_size=50))
def test_torch_and_numpy_agree(people):
    ours, theirs = LOG.quantize(np.array(people)), LOG.quantize(torch.tensor(people, dtype=torch.float64))
    np.testing.assert_array_equal(ours, theirs.numpy())
    np.testing.assert_allclose(LOG.dequantize(ours), LOG.dequantize(theirs).numpy(), rtol=1e-6)


def test_counts_beyond_the_top_are_the_top_interval():
    assert LOG.quantize(np.array(1e9)) == 61


def test_tails_of_a_gaussian_are_nobody():
    assert LOG.quantize(np.array([0.0, 1e-12, NOBODY * 0.99, NOBODY])).tolist() == [0, 0, 0, 1]


def test_json_round_trip():
    assert Quantizer.from_dict(LOG.to_dict()) == LOG


@pytest.mark.parametrize(
    "make",
    [
        lambda: Quantizer.log(1),
        lambda: Quantizer.integer(0),
        lambda: Quantizer((1.0,), (0.0,)),
        lambda: Quantizer((2.0, 1.0), (0.0, 1.0, 2.0)),
    ],
)
def test_impossible_quantizers_are_refused(make):
    with pytest.raises(LibraError):
        make()
