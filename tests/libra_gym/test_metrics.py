"""The figures by which counts are judged, and how far they are chance."""

import tracemalloc
from io import StringIO

import numpy as np
import pytest
import torch
from banks import hand_made_bank, score_of, telling_bank
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from libra_gym.bank import BankImage, FeatureBank
from libra_gym.errors import LibraError
from libra_gym.metrics import redrawn_mean, score


def test_the_figures_of_a_hand_made_bank():
    result = score([1, 1, 2, 1, 4, 0], hand_made_bank())  # the square has two too many, the strip one too few
    assert [record.count for record in result.records] == [5.0, 4.0]
    assert result.mae == pytest.approx(1.5)
    assert result.rmse == pytest.approx(np.sqrt(2.5))
    assert result.nae == pytest.approx((2 / 3 + 1 / 5) / 2)
    assert result.bias == pytest.approx(0.5)
    assert result.interval_accuracy == pytest.approx(4 / 6)
    # GAME 1 of the square: quarters are patches, and two of them have one too many. Of the strip: the left half is 24
    # pixels wide and holds 3/4 of the first patch, so 1.5 are counted in each left quarter and 0.5 in each right one;
    # the dots in them are 1 and 1 to the left, 1 and 2 to the right.
    assert result.records[0].game[1] == pytest.approx(2.0)
    assert result.records[1].game[1] == pytest.approx(0.5 + 0.5 + 0.5 + 1.5)


def test_without_dots_the_true_patch_counts_stand_in_for_them():
    bank = hand_made_bank()
    blind = FeatureBank("blind", bank.features, bank.counts, bank.images, bank.quantizer)
    assert score(bank.counts, blind).records[0].game == pytest.approx((0, 0, 0, 0))
    # The first patch holds all of the strip's five people, of whom four are counted: too few all over the patch.
    assert score(bank.counts, blind).records[1].game == pytest.approx((1, 1, 1, 1))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_game_begins_with_the_mae_and_grows_with_its_level(seed, dots):
    bank = telling_bank(seed=seed)
    if not dots:
        bank = FeatureBank("blind", bank.features, bank.counts, bank.images, bank.quantizer)
    result = score(np.random.default_rng(seed).exponential(1.0, len(bank)), bank)
    assert result.game[0] == pytest.approx(result.mae)
    assert all(low <= high + 1e-9 for low, high in zip(result.game, result.game[1:]))
    assert np.mean([record.game for record in result.records], axis=0) == pytest.approx(result.game)


def test_dots_beyond_the_border_are_people_too():
    image = BankImage("border", "test", 1, 1, (32, 32), 2.0)
    outside = (np.array([[-5, 40], [32, 32]], dtype=np.float32),)
    bank = FeatureBank("border", torch.zeros(1, 2), torch.ones(1), (image,), points=outside)
    assert score([0.0], bank).game == pytest.approx((2, 2, 2, 2))


def test_images_without_people_have_no_normalised_error():
    images = tuple(BankImage(f"{people}", "test", 1, 1, (32, 32), people) for people in (0.0, 4.0))
    bank = FeatureBank("two", torch.zeros(2, 2), torch.tensor([0.0, 4.0]), images)
    assert score([1.0, 3.0], bank).nae == pytest.approx(1 / 4)
    assert score([1.0], bank.select([0])).nae is None


def test_a_photos_truth_is_its_dots_and_not_the_sum_of_its_patch_counts():
    bank = hand_made_bank()
    assert score(bank.counts, bank).mae == pytest.approx(0.5)  # the strip's fifth person is in no patch count


@pytest.mark.parametrize("counts", [[1.0, 2.0], [np.nan] * 6])
def test_counts_that_cannot_be_judged_are_refused(counts):
    with pytest.raises(LibraError, match=r"6 patches|patch 0 is nan"):
        score(counts, hand_made_bank())


def test_errors_are_told_by_the_size_of_the_crowd():
    """Right on the emptier half, and twenty too many on one of the fuller."""
    result = score_of([40, 10, 30, 20], [60, 10, 30, 20])
    empty, full = result.by_crowd(2)
    assert (empty.images, empty.fewest, empty.most, empty.mae, empty.bias, empty.share) == (2, 10, 20, 0, 0, 0)
    assert (full.images, full.fewest, full.most, full.mae, full.bias, full.share) == (2, 30, 40, 10, 10, 1)
    assert sum(group.images for group in score_of(range(1, 8), range(1, 8)).by_crowd()) == 7
    assert len(score_of([3], [4]).by_crowd()) == 1
    assert result.to_dict()["by_crowd"][-1]["most"] == 40
    console = Console(record=True, width=80, file=StringIO())
    console.print(result.crowd_table(2))
    text = console.export_text()
    assert "30 to 40" in text
    assert "100%" in text


def test_the_interval_of_the_mae_holds_the_mae_of_new_photos():
    """Of 95 % intervals from 60 photos each, about so many hold what is true of all photos."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(60):
        low, high = score_of(np.full(60, 100.0), 100.0 + rng.normal(0, 10, 60)).mae_interval()
        held += low <= 10 * np.sqrt(2 / np.pi) <= high
    assert 51 <= held <= 60


def test_few_photos_or_equal_errors_have_no_interval():
    assert score_of([1, 2, 3], [2, 2, 9]).mae_interval() is None
    assert score_of(np.arange(20.0), np.arange(20.0) + 1).mae_interval() is None
    assert score_of([1, 2, 3], [2, 2, 9]).to_dict()["mae_interval"] is None


def test_the_interval_of_many_photos_takes_no_memory_by_their_square():
    errors = np.random.default_rng(0).exponential(10.0, 5_000)
    tracemalloc.start()
    low, high = redrawn_mean(errors)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200e6  # it was 1.6 GB
    spread = 1.96 * errors.std() / np.sqrt(len(errors))
    assert (low, high) == pytest.approx((errors.mean() - spread, errors.mean() + spread), abs=0.05)


def test_errors_that_hardly_differ_have_no_interval():
    assert redrawn_mean(np.array([1.0] * 9 + [1.0000000000000002])) is None
