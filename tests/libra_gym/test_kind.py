"""What a model knows of its photos, and which photos are far from them."""

import pytest

from libra_gym.counter import Counter
from libra_gym.kind import Kind

KIND = Kind(longest_side=1024, shortest_side=400, fewest=30, most=3000)


def test_the_range_of_photos():
    assert Kind.of([((300, 400), 12), ((1024, 768), 0), ((500, 200), 99)]) == Kind(1024, 400, 0, 99)
    assert Kind.of([]) == Kind()


@pytest.mark.parametrize("kind", [KIND, Kind(), Kind(longest_side=7)])
def test_it_comes_back_from_a_description(kind):
    assert Kind.read({"bank": "x", "dataset": "folder", **kind.to_dict()}) == kind


def test_the_range_of_several_banks_is_that_of_all_as_far_as_it_is_known():
    other = Kind(longest_side=2000, shortest_side=500, fewest=0, most=40)
    assert KIND.join(other) == other.join(KIND) == Kind(2000, 400, 0, 3000)
    assert KIND.join(Kind(longest_side=2000)) == Kind(longest_side=2000)
    assert KIND.join(Kind()) == Kind()


@pytest.mark.parametrize(
    ("name", "kind"), [("dense", Kind(1024, 359, 33, 3138)), ("street", Kind(1024, 1024, 12, 576))]
)
def test_the_models_in_the_package(name, kind):
    counter = Counter.load(name)
    assert counter.kind == kind
    assert kind.unlike((768, 1024), 200.0) is None
    about = counter.weigher.about
    assert Kind.read({**about, "dataset": "folder"}) == Kind(longest_side=1024)  # another model on that backbone
    assert Kind.read({**about, **KIND.to_dict()}) == KIND
    assert Kind.read({"dataset": about["dataset"], "longest_side": 1024}) == Kind(longest_side=1024)


@pytest.mark.parametrize(
    ("size", "count", "fact"),
    [
        ((2048, 90), 200.0, None),
        ((2049, 90), 200.0, "its longer side has 2,049 pixels, and no photo that the model learnt from had more than"),
        ((90, 200), 200.0, None),
        ((90, 199), 200.0, "its longer side has 199 pixels, and no photo that the model learnt from had fewer than"),
        ((768, 1024), 15.0, None),
        ((768, 1024), 14.9, "no photo that the model learnt from had fewer than 30 people"),
        ((768, 1024), 6000.0, None),
        ((768, 1024), 6001.0, "no photo that the model learnt from had more than 3,000 people"),
    ],
)
def test_hints(size, count, fact):
    hint = KIND.unlike(size, count)
    assert (hint is None) == (fact is None)
    assert hint is None or hint.fact.startswith(fact)
    assert (KIND.too_large(size) is not None) == (max(size) > 2048)


@pytest.mark.parametrize("count", [0.0, 1e9])
@pytest.mark.parametrize("size", [(1, 1), (10**6, 10**6)])
def test_where_nothing_is_known_there_is_no_hint(size, count):
    assert Kind().unlike(size, count) is None
