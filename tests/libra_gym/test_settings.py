"""Settings say what they may be, and are checked before anything begins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.heads import HeadSettings
from agents.libra_dqn import LibraDQN
from agents.pretraining import pretrain_settings
from agents.registry import ALGORITHMS, find_algorithm, parse_changes
from libra_gym.errors import LibraError
from libra_gym.network import NetworkSettings
from libra_gym.settings import AtLeastOne, Fraction, Positive, Range, Share, argument_hints, check_fields, fit
from libra_gym.task import Rewards, WeighingTask

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


@pytest.mark.parametrize(
    ("value", "hint", "fitted"),
    [
        (1e4, int, 10_000),
        (3, float, 3.0),
        (np.int64(3), AtLeastOne, 3),
        (None, AtLeastOne | None, None),
        ([1, 2.0], tuple[int, ...], (1, 2)),
        ([0.7, 1], tuple[Positive, Positive], (0.7, 1.0)),
        ("log", Literal["log", "integer"], "log"),
        (math.inf, Positive, math.inf),
        ("torch.optim:SGD", type[int], "torch.optim:SGD"),
        (abs, float | Callable[[float], float], abs),
        ({"a": 1}, dict[str, Any], {"a": 1}),
        ([1, "episode"], int | tuple[int, str], (1, "episode")),
        ("anything", Any, "anything"),
    ],
)
def test_fits(value: object, hint: object, fitted: object) -> None:
    found = fit("x", value, hint)
    assert found == fitted
    assert type(found) is type(fitted)


@pytest.mark.parametrize(
    ("value", "hint", "words"),
    [
        (1.5, int, "a whole number"),
        (True, int, "a whole number"),
        (math.inf, int, "a whole number"),
        ("abc", float, "a number"),
        (math.nan, float, "a number"),
        (0, AtLeastOne, "a whole number of at least 1"),
        (1, Fraction, "a number of at least 0 and below 1"),
        (1.1, Share, "a number from 0 to 1"),
        (1, Annotated[float, Range(0, 1, low_out=True, high_out=True)], "a number between 0 and 1"),
        ("maybe", bool, "true or false"),
        (1, bool, "true or false"),
        (1, str, "a text"),
        ("x", Literal["log", "integer"], "one of log, integer"),
        (3, tuple[AtLeastOne, ...], "a list, each a whole number of at least 1"),
        ([3], tuple[float, float], "a list of 2: a number, a number"),
        (3, dict[str, Any] | None, "a group of settings or null"),
        ("x", float | Callable[[float], float], "a number or a reference such as package.module:Name"),
    ],
)
def test_misfits(value: object, hint: object, words: str) -> None:
    with pytest.raises(LibraError) as error:
        fit("x", value, hint)
    assert str(error.value) == f"x is {value!r}, but it must be {words}."


@given(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()),
    st.sampled_from([int, float, bool, str, AtLeastOne, Share, AtLeastOne | None, tuple[int, ...], Any, type[int]]),
)
def test_whatever_comes_fits_or_is_refused(value: object, hint: object) -> None:
    try:
        fitted = fit("x", value, hint)
    except LibraError:
        return
    assert fit("x", fitted, hint) == fitted  # and then it fits for good


def test_an_annotation_that_cannot_be_read_leaves_the_others() -> None:
    def function(a: Unknown, b: AtLeastOne, c=1) -> None: ...  # type: ignore[no-untyped-def]

    assert argument_hints(function) == {"b": AtLeastOne}


def test_fields_are_fitted_in_place() -> None:
    @dataclass(frozen=True)
    class Settings:
        number: int = 1

        def __post_init__(self) -> None:
            check_fields(self)

    assert Settings(2.0).number == 2  # type: ignore[arg-type]
    with pytest.raises(LibraError, match="number is 'x'"):
        Settings("x")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_recipes_fit(name: str) -> None:
    algorithm = find_algorithm(name)
    for preset in algorithm.presets():
        algorithm.preset(preset)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("libra_dqn", "batch_size=0"),
        ("libra_dqn", "gamma=2"),
        ("libra_dqn", "epsilon_start=5"),
        ("libra_dqn", "average=2"),
        ("libra_dqn", "weighings=-1"),
        ("libra_dqn", "normalise=maybe"),
        ("libra_dqn", "learning_rate=abc"),
        ("libra_dqn", "policy_kwargs=3"),
        ("libra_dqn", "env=3"),
        ("bc", "update_every=0"),
        ("dagger", "beta_start=2"),
        ("head_classification", "hidden=[0]"),
        ("head_regression", "dropout=1"),
        ("dqn", "exploration_fraction=0"),
        ("double_dqn", "batch_size=0"),
        ("ppo", "gamma=2"),
        ("ppo", "clip_range=x"),
        ("maskable_ppo", "n_steps=0"),
        ("qrdqn", "learning_rate=-1"),
    ],
)
def test_settings_of_algorithms_are_checked(name: str, text: str) -> None:
    with pytest.raises(LibraError, match=f"{text.partition('=')[0]} is "):
        find_algorithm(name).preset("default", parse_changes([text]))


def test_lists_stay_lists_and_numbers_become_what_they_are() -> None:
    changes = parse_changes(["batch_size=1e2", "gamma=0", "train_freq=[1, episode]"])
    settings = find_algorithm("dqn").preset("default", changes)
    assert settings["batch_size"] == 100
    assert isinstance(settings["batch_size"], int)
    assert isinstance(settings["gamma"], float)
    assert settings["train_freq"] == [1, "episode"]


@pytest.mark.parametrize("text", ["crop=abc", "scales=1", "scales=[1]", "average=1", "views=0", "kernel=3", "grey=2"])
def test_settings_of_pretraining_are_checked(text: str) -> None:
    with pytest.raises(LibraError, match=f"{text.partition('=')[0]} is "):
        pretrain_settings("bcnet", changes=parse_changes([text]))


def test_constructors_check_too() -> None:
    with pytest.raises(LibraError, match="gamma is 2, but it must be a number from 0 to 1"):
        LibraDQN(gamma=2)
    with pytest.raises(LibraError, match="hidden is"):
        NetworkSettings(hidden=(0,))
    with pytest.raises(LibraError, match="dropout is"):
        HeadSettings(dropout=1.0)
    with pytest.raises(LibraError, match="guiding is 'maybe'"):
        Rewards(guiding="maybe")  # type: ignore[arg-type]
    with pytest.raises(LibraError, match="max_steps is"):
        WeighingTask(3, max_steps=0)
