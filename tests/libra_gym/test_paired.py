"""Two counters on the same photos."""

import json
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from banks import hand_made_bank, score_of
from rich.console import Console

from libra_gym.errors import LibraError
from libra_gym.metrics import score
from libra_gym.paired import Counted, compare, read_counts


def counts_of(result):
    return {record.name: Counted(record.count) for record in result.records}


def test_errors_are_compared_photo_by_photo():
    ours, theirs = score_of([10, 20, 30], [12, 20, 27]), score_of([10, 20, 30], [14, 21, 29])
    paired = compare(ours, {**counts_of(theirs), "another": Counted(5.0)})
    assert (paired.images, paired.mae.closer, paired.mae.farther) == (3, 2, 1)
    assert (paired.mae.mean, paired.mae.other) == (pytest.approx(5 / 3), pytest.approx(2.0))
    assert paired.mae.difference == pytest.approx(-1 / 3)
    assert paired.mae.interval is None  # three photos say nothing
    assert (paired.game, paired.level) == (None, 0)  # of the other, only whole images' counts are known


def test_a_small_gain_on_every_photo_is_seen_where_the_intervals_of_both_overlap():
    rng = np.random.default_rng(0)
    people = np.full(40, 500.0)
    error = rng.normal(0, 100, 40)
    better, worse = score_of(people, people + error), score_of(people, people + error * 1.1)
    assert better.mae_interval()[1] > worse.mae_interval()[0]
    low, high = compare(better, counts_of(worse)).mae.interval
    assert low < -0.1 * better.mae < high < 0
    back = compare(worse, counts_of(better))
    assert (back.mae.closer, back.mae.farther) == (0, 40)
    console = Console(record=True, width=80, file=StringIO())
    console.print(back.table("against better.csv"))
    text = console.export_text()
    assert f"{back.mae.difference:+.2f}" in text
    assert "40 of 40 images" in text
    assert "GAME" not in text


def test_people_in_the_wrong_place_are_seen_though_the_counts_are_alike(tmp_path):
    bank = hand_made_bank()
    here, elsewhere = score([1, 0, 2, 0, 5, 0], bank), score([0, 2, 0, 1, 0, 5], bank)
    elsewhere.save_csv(tmp_path / "elsewhere.csv")
    others = read_counts(tmp_path / "elsewhere.csv")
    paired = compare(here, others)
    assert (paired.mae.difference, paired.mae.closer) == (0, 0)
    assert paired.level == 3
    assert paired.game.mean == pytest.approx(here.game[3])
    assert paired.game.other == pytest.approx(elsewhere.game[3], abs=0.01)
    assert paired.game.difference < 0
    coarser = {name: Counted(other.count, other.game[:1]) for name, other in others.items()}
    assert compare(here, coarser).level == 1  # the finest level that both have
    assert compare(here, coarser).game.other == pytest.approx(elsewhere.game[1], abs=0.01)
    console = Console(record=True, width=80, file=StringIO())
    console.print(paired.table("against elsewhere.csv"))
    assert "GAME 3" in console.export_text()


def test_chance_is_called_chance():
    """Of counters that are equally good, about one pair in twenty seems to differ."""
    rng = np.random.default_rng(0)
    people = np.full(40, 500.0)
    held = 0
    for _ in range(40):
        one, two = (score_of(people, people + rng.normal(0, 100, 40)) for _ in range(2))
        low, high = compare(one, counts_of(two)).mae.interval
        held += low < 0 < high
    assert 34 <= held <= 40


def test_counts_are_read_back_from_the_file_that_a_score_writes(tmp_path):
    result = score_of([10, 20], [12.25, 20])
    result.save_csv(tmp_path / "counts.csv")
    counts = read_counts(tmp_path / "counts.csv")
    assert {name: other.count for name, other in counts.items()} == {"photo-0": 12.25, "photo-1": 20.0}
    assert [len(other.game) for other in counts.values()] == [3, 3]
    (tmp_path / "bare.csv").write_text("count,game_2,name\n12.25,1,photo-0\n")
    assert read_counts(tmp_path / "bare.csv") == {"photo-0": Counted(12.25)}  # no GAME 2 without GAME 1
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
        ("name,count,game_1\na,3,4\nb,3,\n", "line 3: the game_1 is no number"),
        ("name,count\na,3\na,4\n", "line 3: the image 'a' is there twice"),
        ("count,name\n5\n", "line 2: there is no name"),
    ],
)
def test_a_file_that_is_none_of_counts_is_refused(text, message, tmp_path):
    (tmp_path / "counts.csv").write_text(text)
    with pytest.raises(LibraError, match=message):
        read_counts(tmp_path / "counts.csv")
    with pytest.raises(LibraError, match="cannot be read"):
        read_counts(tmp_path / "none.csv")


@pytest.mark.parametrize("text", ["\ufeffname,count\na,3\n", "name,count\n\na,3\n\n,\n"])
def test_what_spreadsheets_add_does_no_harm(text, tmp_path):
    (tmp_path / "counts.csv").write_text(text, encoding="utf-8")
    assert read_counts(tmp_path / "counts.csv") == {"a": Counted(3.0)}


def test_a_name_that_is_no_text_is_found_again(tmp_path):
    result = score_of([10], [12])
    named = replace(result, records=(replace(result.records[0], name="caf\udce9.jpg"),))
    named.save_csv(tmp_path / "counts.csv")
    assert b"caf\xe9.jpg,test," in (tmp_path / "counts.csv").read_bytes()
    assert read_counts(tmp_path / "counts.csv").keys() == {"caf\udce9.jpg"}
    named.save_json(tmp_path / "score.json")
    assert json.loads((tmp_path / "score.json").read_text("utf-8"))["records"][0]["name"] == "caf\udce9.jpg"


def test_a_counter_equals_itself(tmp_path):
    rng = np.random.default_rng(0)
    result = score_of(rng.uniform(0, 100, 20), rng.uniform(0, 100, 20))
    result.save_csv(tmp_path / "counts.csv")
    paired = compare(result, read_counts(tmp_path / "counts.csv"))
    assert (paired.mae.closer, paired.mae.farther) == (0, 0)
    assert abs(paired.mae.difference) < 0.005


def test_a_name_in_brackets_is_no_markup():
    result = score_of([10, 20], [12, 20])
    console = Console(record=True, width=80, file=StringIO())
    console.print(compare(result, counts_of(result)).table("against a[/b].csv"))
    console.print(replace(result, bank="we[ir]d").table())
    text = console.export_text()
    assert "against a[/b].csv" in text
    assert "we[ir]d: 2 images" in text
