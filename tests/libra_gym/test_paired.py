"""Two counters on the same photos."""

from io import StringIO

import numpy as np
import pytest
from conftest import score_of
from rich.console import Console

from libra_gym.errors import LibraError
from libra_gym.paired import compare, read_counts


def counts_of(result):
    return {record.name: record.count for record in result.records}


def test_errors_are_compared_photo_by_photo():
    ours, theirs = score_of([10, 20, 30], [12, 20, 27]), score_of([10, 20, 30], [14, 21, 29])
    paired = compare(ours, {**counts_of(theirs), "another": 5.0})
    assert (paired.images, paired.closer, paired.farther) == (3, 2, 1)
    assert (paired.mae, paired.other_mae) == (pytest.approx(5 / 3), pytest.approx(2.0))
    assert paired.difference == pytest.approx(-1 / 3)
    assert paired.interval is None  # three photos say nothing


def test_a_small_gain_on_every_photo_is_seen_where_the_intervals_of_both_overlap():
    rng = np.random.default_rng(0)
    people = np.full(40, 500.0)
    error = rng.normal(0, 100, 40)
    better, worse = score_of(people, people + error), score_of(people, people + error * 1.1)
    assert better.mae_interval()[1] > worse.mae_interval()[0]
    low, high = compare(better, counts_of(worse)).interval
    assert low < -0.1 * better.mae < high < 0
    back = compare(worse, counts_of(better))
    assert (back.closer, back.farther) == (0, 40)
    console = Console(record=True, width=80, file=StringIO())
    console.print(back.table("against better.csv"))
    text = console.export_text()
    assert f"{back.difference:+.2f}" in text
    assert "40 of 40 images" in text


def test_chance_is_called_chance():
    """Of counters that are equally good, about one pair in twenty seems to differ."""
    rng = np.random.default_rng(0)
    people = np.full(40, 500.0)
    held = 0
    for _ in range(40):
        one, two = (score_of(people, people + rng.normal(0, 100, 40)) for _ in range(2))
        low, high = compare(one, counts_of(two)).interval
        held += low < 0 < high
    assert 34 <= held <= 40


def test_counts_are_read_back_from_the_file_that_a_score_writes(tmp_path):
    result = score_of([10, 20], [12.25, 20])
    result.save_csv(tmp_path / "counts.csv")
    assert read_counts(tmp_path / "counts.csv") == {"photo-0": 12.25, "photo-1": 20.0}
    with pytest.raises(LibraError, match="lack 1 of 3 images, the first is 'photo-2'"):
        compare(score_of([10, 20, 30], [1, 2, 3]), read_counts(tmp_path / "counts.csv"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,people\na,3\n", "no columns 'name' and 'count'"),
        ("", "no columns"),
        ("name,count\na,3\nb,many\n", "line 3: the count is no number"),
        ("name,count\na,3\nb\n", "line 3: the count is no number"),
        ("name,count\na,nan\n", "line 2: the count is no number"),
        ("name,count\na,3\na,4\n", "line 3: the image 'a' is there twice"),
    ],
)
def test_a_file_that_is_none_of_counts_is_refused(text, message, tmp_path):
    (tmp_path / "counts.csv").write_text(text)
    with pytest.raises(LibraError, match=message):
        read_counts(tmp_path / "counts.csv")
    with pytest.raises(LibraError, match="cannot be read"):
        read_counts(tmp_path / "none.csv")
