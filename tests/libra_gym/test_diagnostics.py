"""The figures of a whole bank show the numbers that they are given."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from libra_gym.errors import LibraError
from libra_gym.rendering import (
    actions_figure,
    calibration_figure,
    causes_figure,
    confusion_figure,
    scatter_figure,
)
from libra_gym.rendering.canvas import DOWN, END, UP, rgb
from libra_gym.task import WeighingTask

TASK = WeighingTask.intervals(57)
UP_10, UP_1, DOWN_1, STOP = 7, 4, 3, TASK.end


def heights(container):
    return [bar.get_height() for bar in container]


def test_actions_are_shares_of_the_patches_still_on_the_scale():
    actions = np.array([[UP_10, STOP, -1], [UP_10, DOWN_1, STOP], [STOP, -1, -1], [UP_1, STOP, -1]])
    optimal = np.full_like(actions, STOP)
    figure = actions_figure(actions, optimal, TASK.labels)
    first, second, third = (ax for ax in figure.axes if ax.get_title())
    assert [ax.get_title() for ax in (first, second, third)] == [
        "t = 0: 4 patches",
        "t = 1: 3 patches",
        "t = 2: 1 patches",
    ]
    shares = heights(first.containers[0])
    assert shares == pytest.approx([0, 0, 0, 0, 0.25, 0, 0, 0.5, 0.25])
    assert heights(second.containers[0])[DOWN_1] == pytest.approx(1 / 3)
    guide = first.collections[0].get_segments()
    assert [segment[0, 1] for segment in guide] == pytest.approx([0.0] * 8 + [1.0])
    colours = [to_rgb(bar.get_facecolor()) for bar in first.containers[0]]
    assert (colours[0], colours[7], colours[8]) == (rgb(DOWN), rgb(UP), rgb(END))


def test_confusion_is_normalised_over_each_true_interval():
    truth, estimate = np.array([0, 0, 0, 0, 2, 2]), np.array([0, 0, 0, 1, 2, 1])
    figure = confusion_figure(truth, estimate, (0.0, 0.1, 12.3))
    table = figure.axes[1].images[0].get_array().filled(np.nan)
    np.testing.assert_allclose(table[:, 0], [0.75, 0.25, 0])
    np.testing.assert_allclose(table[:, 2], [0, 0.5, 0.5])
    assert np.isnan(table[:, 1]).all()  # no patch is truly of interval 1
    assert "66.7% are exact, 100.0% within two" in figure.get_suptitle()
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == ["0 (0)", "1 (0.1)", "2 (12)"]


class TestCalibration:
    ERROR = np.repeat([-3.0, 0.0, 8.0], 50)
    ACTIONS = np.repeat([DOWN_1, STOP, UP_10], 50)
    Q = np.repeat([1.0, 0.0, 5.0], 50)

    def test_a_right_needle_lies_on_the_identity(self):
        figure = calibration_figure(self.ERROR, self.ACTIONS, self.Q, self.Q, TASK.labels)
        identity, needle = figure.axes[2].lines[:2]
        np.testing.assert_allclose(needle.get_xdata(), needle.get_ydata())
        assert identity.get_xdata().tolist() == identity.get_ydata().tolist() == [0.0, 5.0]

    def test_a_boastful_needle_lies_below_it(self):
        figure = calibration_figure(self.ERROR, self.ACTIONS, self.Q, self.Q / 2, TASK.labels)
        needle = figure.axes[2].lines[1]
        np.testing.assert_allclose(needle.get_ydata(), needle.get_xdata() / 2)

    def test_it_tells_what_the_agent_does_at_each_error(self):
        figure = calibration_figure(self.ERROR, self.ACTIONS, self.Q, self.Q, TASK.labels)
        adds, removes, ends = ({bar.get_x(): bar.get_height() for bar in bars} for bars in figure.axes[0].containers)
        assert ends[-0.5] == removes[-3.5] == adds[7.5] == 1.0
        assert sum(adds.values()) == sum(removes.values()) == sum(ends.values()) == 1.0

    def test_errors_with_few_actions_are_left_out(self):
        error = np.append(self.ERROR, 30.0)
        more = [np.append(array, array[-1]) for array in (self.ACTIONS, self.Q, self.Q)]
        figure = calibration_figure(error, *more, TASK.labels)
        assert max(figure.axes[1].lines[0].get_xdata()) < 10

    def test_real_valued_errors_have_bins_too(self):
        rng = np.random.default_rng(0)
        error = rng.normal(0, 3, 2000)
        figure = calibration_figure(error, np.full(2000, STOP), error, error, TASK.labels, unit="people")
        assert "people" in figure.axes[0].get_xlabel()
        assert sum(bar.get_height() for bar in figure.axes[0].containers[2]) > 10

    def test_arrays_of_different_lengths_are_refused(self):
        with pytest.raises(LibraError, match="one Q value"):
            calibration_figure(self.ERROR, self.ACTIONS, self.Q[1:], self.Q, TASK.labels)


class TestScatter:
    def test_the_title_has_the_errors_and_the_worst_are_named(self):
        people, counts = np.array([10.0, 500.0, 90.0, 60.0]), np.array([11.0, 400.0, 120.0, 58.0])
        figure = scatter_figure(people, counts, ["a", "b", "c", "d"])
        ax = figure.axes[0]
        assert "MAE 33.2" in ax.get_title()
        assert "bias -17.8" in ax.get_title()
        assert ax.texts[-1].get_text().splitlines() == ["greatest errors", "1  b: -100", "2  c: +30", "3  d: -2"]
        assert ax.get_xscale() == "log"

    def test_an_image_with_nobody_has_a_place(self):
        figure = scatter_figure(np.array([0.0, 900.0]), np.array([3.0, 800.0]), ["a", "b"])
        ax = figure.axes[0]
        assert ax.get_xscale() == "linear"
        assert ax.get_xlim() == ax.get_ylim()
        assert ax.get_xlim()[0] == 0.0


def test_causes_add_up_too_many_and_too_few_apart():
    errors = np.array([[2.0, -6.0], [4.0, 2.0]])
    figure = causes_figure(("with nobody", "with 3"), errors, {"too few in patches with 3": (1, 4.0)})
    many, few = figure.axes[0].containers
    assert heights(many) == pytest.approx([3.0, 1.0])
    assert heights(few) == pytest.approx([0.0, -3.0])
    assert [text.get_text() for text in figure.axes[1].texts] == ["4 (1)"]


def test_causes_of_a_perfect_count_are_none():
    figure = causes_figure(("with nobody",), np.zeros((2, 1)), {})
    assert len(figure.axes[1].patches) == 0
