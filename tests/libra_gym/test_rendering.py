"""Pictures of the scale show what they are told, in the paper's colours, and the same each time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image as Pillow

from libra_gym.errors import LibraError
from libra_gym.rendering import (
    CountMaps,
    ScaleView,
    animate_weighing,
    ansi_scale,
    count_map_figure,
    draw_scale,
    gallery_figure,
    weighing_figure,
)
from libra_gym.rendering.canvas import CHOSEN, DOWN, END, UP, VALUE, Canvas, Colour
from libra_gym.task import WeighingTask

TASK = WeighingTask.intervals(57)
POOLS = (TASK.labels, WeighingTask.counts(30.0).labels)
UNBALANCED = ScaleView(weights=(10, 5), value=15, truth=17, step=2, max_steps=8, actions=TASK.labels, last_action=6)
BALANCED = replace(UNBALANCED, weights=(10, 5, 2), value=17, step=3, last_action=5)
BEAM = np.s_[150:265, :]  # the rows of the standard picture in which the beam and the pans are


def pixels_of(picture: npt.NDArray[np.uint8], colour: Colour) -> int:
    return int((np.abs(picture[..., :3].astype(int) - colour).max(-1) <= 3).sum())


def rasterize(figure: Figure) -> npt.NDArray[np.uint8]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


@st.composite
def views(draw: st.DrawFn) -> ScaleView:
    labels = draw(st.sampled_from(POOLS))
    weights = draw(st.lists(st.sampled_from([float(label) for label in labels[:-1]]), max_size=20))
    count = st.floats(0, 60)
    needle = st.lists(st.floats(-1e3, 1e3) | st.just(np.nan), min_size=len(labels), max_size=len(labels))
    patch = np.full((32, 32, 3), 99, np.uint8)
    return ScaleView(
        weights=tuple(weights),
        value=draw(count),
        truth=draw(st.none() | count),
        step=len(weights),
        max_steps=draw(st.integers(1, 20)),
        actions=labels,
        needle=draw(st.none() | needle.map(np.array)),
        last_action=draw(st.none() | st.integers(0, len(labels) - 1)),
        ended=draw(st.booleans()),
        patch_image=draw(st.sampled_from([None, patch])),
        reward=draw(st.none() | st.sampled_from([-5.0, 3.0])),
    )


class TestTheScaleOfOnePatch:
    @settings(max_examples=40, deadline=None)
    @given(view=views(), size=st.tuples(st.integers(32, 400), st.integers(32, 500)))
    def test_any_state_has_a_picture_of_the_asked_size_and_a_text(self, view: ScaleView, size: tuple[int, int]) -> None:
        picture = draw_scale(view, size)
        assert picture.shape == (*size, 3)
        assert picture.dtype == np.uint8
        np.testing.assert_array_equal(picture, draw_scale(view, size))
        assert ansi_scale(view).isascii()

    def test_the_standard_picture_is_360_by_480(self) -> None:
        assert draw_scale(UNBALANCED).shape == (360, 480, 3)

    def test_a_picture_too_small_to_read_is_refused(self) -> None:
        with pytest.raises(LibraError, match="8 × 480"):
            draw_scale(UNBALANCED, (8, 480))

    def test_the_beam_is_green_only_when_it_balances(self) -> None:
        assert pixels_of(draw_scale(BALANCED)[BEAM], VALUE) > 1000
        assert pixels_of(draw_scale(UNBALANCED)[BEAM], VALUE) == 0
        assert pixels_of(draw_scale(replace(BALANCED, truth=None))[BEAM], VALUE) == 0

    def test_the_beam_leans_to_the_heavier_side(self) -> None:
        def lowest(picture: npt.NDArray[np.uint8], columns: slice) -> int:
            band = picture[150:258, columns].astype(int)  # down to the foot of the stand
            return int(np.flatnonzero((band.sum(-1) < 600).any(-1)).max())

        left, right = slice(95, 110), slice(370, 385)
        light, heavy = draw_scale(UNBALANCED), draw_scale(replace(UNBALANCED, value=19))
        level = draw_scale(BALANCED)
        assert lowest(light, left) > lowest(level, left) > lowest(heavy, left)
        assert lowest(light, right) < lowest(level, right) < lowest(heavy, right)

    @given(errors=st.tuples(st.integers(-56, 56), st.integers(-56, 56)))
    def test_a_greater_error_never_leans_less(self, errors: tuple[int, int]) -> None:
        low, high = sorted(errors)
        light, heavy = (replace(UNBALANCED, value=56.0 + error, truth=56.0) for error in (low, high))
        assert -1 <= light.tilt <= heavy.tilt <= 1
        assert (light.tilt == 0) == (low == 0) == light.balanced

    def test_real_valued_counts_balance_within_half_of_the_smallest_weight_or_a_given_tolerance(self) -> None:
        view = ScaleView(weights=(), value=2.5, truth=2.504, step=0, max_steps=8, actions=POOLS[1])
        assert view.balanced
        assert not replace(view, truth=2.506).balanced
        assert replace(view, truth=2.506, tolerance=0.1).balanced

    def test_the_needle_shows_each_kind_of_action_in_its_colour_and_marks_the_chosen_one(self) -> None:
        strip = np.s_[270:, :]
        needle = np.array([np.nan, -1, -2, -1, 1, 2, 4, 3, -4])
        bare, shown = draw_scale(UNBALANCED)[strip], draw_scale(replace(UNBALANCED, needle=needle))[strip]
        for colour in (UP, DOWN, END):
            assert pixels_of(shown, colour) > pixels_of(bare, colour) + 100
        assert pixels_of(shown, CHOSEN) > 20
        assert pixels_of(draw_scale(replace(UNBALANCED, needle=needle, last_action=None))[strip], CHOSEN) == 0

    def test_the_hidden_truth_is_in_neither_picture_nor_text(self) -> None:
        hidden = replace(UNBALANCED, truth=None)
        assert "17" not in ansi_scale(hidden)
        assert "truth ?" in ansi_scale(hidden)
        assert hidden.tilt == 0

    def test_the_patch_lies_on_the_left_pan(self) -> None:
        patch = np.full((32, 32, 3), (255, 0, 255), np.uint8)
        picture = draw_scale(replace(UNBALANCED, patch_image=patch))
        assert pixels_of(picture[:, :240], (255, 0, 255)) > 2000
        assert pixels_of(picture[:, 240:], (255, 0, 255)) == 0

    def test_a_removed_weight_lies_beside_the_patch(self) -> None:
        left_pan = np.s_[100:250, :240]
        removed = replace(UNBALANCED, weights=(10, 10, -5))
        assert pixels_of(draw_scale(UNBALANCED)[left_pan], DOWN) < pixels_of(draw_scale(removed)[left_pan], DOWN) - 100

    def test_the_text_tells_the_same_facts(self) -> None:
        needle = np.array([np.nan, -1, -2, -1, 1, 2, 4, 3, -4])
        text = ansi_scale(replace(UNBALANCED, needle=needle, reward=3.0, ended=True))
        for fact in ("step 2 of 8", "action +5", "reward +3", "ended", "truth 17", "value 15", "too light by 2",
                     "+10 +5", ">+5:4", "-10:illegal"):  # fmt: skip
            assert fact in text
        assert "balanced" in ansi_scale(BALANCED)

    def test_a_needle_for_another_pool_is_refused(self) -> None:
        with pytest.raises(LibraError, match="9 actions"):
            replace(UNBALANCED, needle=np.zeros(19))


# Two rows and three columns of patches on a photo whose last column is partly padding; three steps.
PHOTO = np.tile(np.linspace(60, 200, 80).astype(np.uint8)[None, :, None], (64, 1, 3))
UP_10, DOWN_1, STOP, OVER = 7, 3, TASK.end, -1
ACTIONS = np.array([[[UP_10, STOP, UP_10]] * 2, [[DOWN_1, OVER, UP_10]] * 2, [[STOP, OVER, STOP]] * 2])
VALUES = np.array([[[10, 0, 10]] * 2, [[9, 0, 20]] * 2, [[9, 0, 20]] * 2])
TRUTH = np.array([[9, 0, 21]] * 2)
Q = np.linspace(-3, 4, 27).reshape(3, 9)


class TestTheWeighingFigure:
    def test_it_shows_operators_in_the_papers_colours_and_values_in_green(self) -> None:
        picture = rasterize(weighing_figure(PHOTO, ACTIONS, VALUES, TRUTH, Q, TASK.labels))
        for colour in (UP, DOWN, END, VALUE, CHOSEN):
            assert pixels_of(picture, colour) > 50

    def test_it_has_a_panel_for_the_region_each_step_and_the_truth(self) -> None:
        figure = weighing_figure(PHOTO, ACTIONS, VALUES, TRUTH, Q, TASK.labels)
        titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
        needles = [f"t = 0: +10 ({Q[0, 7]:.2f})", f"t = 1: -1 ({Q[1, 3]:.2f})", "t = 2: end (4)"]
        assert titles == ["region", "t = 0", "t = 1", "t = 2", "truth", *needles]
        written = [[text.get_text() for text in ax.texts] for ax in figure.axes[1:5]]
        assert written[0] == ["+10", "10", "E", "0", "+10", "10"] * 2
        assert written[1] == ["-1", "9", "0", "+10", "20"] * 2
        assert written[3] == ["9", "0", "21"] * 2

    def test_an_unknown_truth_has_no_panel(self) -> None:
        figure = weighing_figure(PHOTO, ACTIONS, VALUES, None, Q, TASK.labels)
        assert "truth" not in [ax.get_title() for ax in figure.axes]

    def test_the_needle_stops_where_the_chosen_patch_ended(self) -> None:
        figure = weighing_figure(PHOTO, ACTIONS, VALUES, None, Q, TASK.labels, patch=(1, 1))
        needles = [ax.get_title() for ax in figure.axes if ":" in ax.get_title()]
        assert [title.split(" (")[0] for title in needles] == ["t = 0: end"]

    def test_an_agent_without_q_values_has_no_needle_and_no_frame(self) -> None:
        figure = weighing_figure(PHOTO, ACTIONS, VALUES, None, None, TASK.labels)
        assert [ax.get_title() for ax in figure.axes if ":" in ax.get_title()] == []
        assert pixels_of(rasterize(figure), CHOSEN) == 0

    def test_the_title_counts_rows_and_columns_from_the_photos_corner(self) -> None:
        figure = weighing_figure(PHOTO, ACTIONS, VALUES, None, Q, TASK.labels, patch=(1, 2), corner=(10, 20))
        assert "row 11, column 22" in figure.subfigs[1].get_suptitle()

    @pytest.mark.parametrize(
        ("actions", "q", "message"),
        [
            (ACTIONS[:, :, :2], Q, "must both be"),
            (ACTIONS, Q[:2], "Q values have shape"),
            (np.full_like(ACTIONS, OVER), Q, "never weighed"),
        ],
    )
    def test_arrays_that_do_not_fit_are_refused(
        self, actions: npt.NDArray[np.int64], q: npt.NDArray[np.float64], message: str
    ) -> None:
        with pytest.raises(LibraError, match=message):
            weighing_figure(PHOTO, actions, VALUES, TRUTH, q, TASK.labels)


class TestTheCountMap:
    def test_photo_truth_and_estimate_stand_side_by_side_with_their_totals(self) -> None:
        figure, again = (count_map_figure(PHOTO, TRUTH, TRUTH * 1.5, (1060.0, 1090.4)) for _ in range(2))
        assert [ax.get_title() for ax in figure.axes[:3]] == ["photo", "truth: 1,060", "estimate: 1,090.4"]
        assert figure.axes[1].images[0].get_clim() == figure.axes[2].images[0].get_clim()
        np.testing.assert_array_equal(rasterize(figure), rasterize(again))

    def test_without_a_truth_there_are_two_panels(self) -> None:
        figure = count_map_figure(PHOTO, None, TRUTH, (None, 60.0))
        assert [ax.get_title() for ax in figure.axes[:2]] == ["photo", "estimate: 60.0"]

    def test_a_map_of_another_grid_is_refused(self) -> None:
        with pytest.raises(LibraError, match=r"\(2, 3\) patches, not \(2, 2\)"):
            count_map_figure(PHOTO, None, TRUTH[:, :2], (None, 60.0))

    @pytest.mark.parametrize("size", [(600, 7), (60, 1024), (480, 640)])
    def test_titles_and_scale_fit_beside_photos_of_any_shape(self, size: tuple[int, int]) -> None:
        grid = np.ones((-(-size[0] // 32), -(-size[1] // 32)))
        figure = count_map_figure(np.zeros((*size, 3), np.uint8), grid, grid, (1234.0, 1234.5))
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        whole = figure.get_window_extent(renderer)
        texts = [ax.title.get_window_extent(renderer) for ax in figure.axes[:-1]]
        texts.append(figure.axes[-1].yaxis.label.get_window_extent(renderer))
        for place, text in enumerate(texts):
            assert whole.x0 <= text.x0 <= text.x1 <= whole.x1
            assert whole.y0 <= text.y0 <= text.y1 <= whole.y1
            assert not any(text.overlaps(other) for other in texts[:place])


class TestTheGallery:
    CASES = (
        CountMaps(PHOTO, TRUTH, TRUTH * 2, (60.0, 120.0), "first"),
        CountMaps(PHOTO.transpose(1, 0, 2), None, TRUTH.T, (None, 60.0), "second"),
    )

    def test_each_case_is_a_row_of_its_own_colour_scale(self) -> None:
        figure = gallery_figure(self.CASES, "Worst counts")
        assert [text.get_text() for text in figure.texts] == ["Worst counts", "first", "second"]
        titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
        assert titles == ["photo", "truth: 60", "estimate: 120.0", "photo", "estimate: 60.0"]

    def test_nothing_overlaps_or_lies_beyond_the_edge(self) -> None:
        figure = gallery_figure(self.CASES, "Worst counts")
        rasterize(figure)
        renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # of the Agg canvas
        boxes = [ax.get_tightbbox(renderer) for ax in figure.axes]
        boxes += [text.get_window_extent(renderer) for text in figure.texts]
        for i, box in enumerate(boxes):
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
            assert not any(box.overlaps(other) for other in boxes[:i])


class TestTheAnimation:
    def test_it_is_a_gif_of_the_photo_and_each_step(self, tmp_path: Path) -> None:
        path = tmp_path / "weighing.gif"
        animate_weighing(PHOTO, ACTIONS, VALUES, TASK.labels, path, totals=[1.0, 2.0, 3.0], seconds=0.5)
        with Pillow.open(path) as gif:
            assert gif.format == "GIF"
            frames, durations = [], []
            for index in range(gif.n_frames):
                gif.seek(index)
                frames.append(np.asarray(gif.convert("RGB")))
                durations.append(gif.info["duration"])
        assert durations == [500, 500, 500, 1500]
        assert pixels_of(frames[0], UP) == pixels_of(frames[0], END) == 0
        assert pixels_of(frames[1], UP) > 200
        assert pixels_of(frames[2], DOWN) > 100
        assert pixels_of(frames[3], END) > 200

    def test_a_label_or_value_of_any_length_stays_in_its_cell(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        widths = {}

        def measured(self: Canvas, text: str, at: Any, height: float, *_: Any, **named: Any) -> None:
            if self.scale > 1:  # not the header
                size = height * self.scale / 22
                widths[text] = cv2.getTextSize(text, cv2.FONT_HERSHEY_DUPLEX, size, 1)[0][0] / self.scale

        monkeypatch.setattr(Canvas, "text", measured)
        labels = ("+0.01", "-0.25", "+10", "end")
        values = np.array([[[0.01, -0.25]], [[1234.0, 0.01]]])
        animate_weighing(PHOTO[:32, :64], np.array([[[0, 1]], [[2, 3]]]), values, labels, tmp_path / "x.gif")
        assert {"+.01", "-.25", "+10", "E"} <= widths.keys()
        assert max(widths.values()) < 1

    def test_an_mp4_shows_the_same_frames_for_as_long(self, tmp_path: Path) -> None:
        path = tmp_path / "weighing.mp4"
        animate_weighing(PHOTO, ACTIONS, VALUES, TASK.labels, path, seconds=0.5)
        film = cv2.VideoCapture(str(path))
        assert film.get(cv2.CAP_PROP_FRAME_COUNT) / film.get(cv2.CAP_PROP_FPS) == pytest.approx(3.0)
        frames = []
        while (read := film.read())[0]:
            frames.append(read[1])
        assert np.abs(frames[0].astype(int) - frames[4]).mean() < 1  # within the first half second
        assert np.abs(frames[0].astype(int) - frames[5]).mean() > 10
        assert list(tmp_path.iterdir()) == [path]

    def test_another_ending_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(LibraError, match=r"a \.gif or an \.mp4"):
            animate_weighing(PHOTO, ACTIONS, VALUES, TASK.labels, tmp_path / "x.avi")

    def test_a_total_is_needed_for_each_step(self, tmp_path: Path) -> None:
        with pytest.raises(LibraError, match="2 totals for 3 steps"):
            animate_weighing(PHOTO, ACTIONS, VALUES, TASK.labels, tmp_path / "x.gif", totals=[1.0, 2.0])


def test_drawing_a_scale_does_not_import_matplotlib() -> None:
    check = "import sys, libra_gym.rendering; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
