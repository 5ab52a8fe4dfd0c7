"""Pictures for people who count."""

import numpy as np
import pytest

from libra_gym.errors import LibraError
from libra_gym.rendering.overlay import course_figure, overlay_figure


def pixels(figure):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].astype(float)


@pytest.mark.parametrize("size", [(96, 160), (160, 96), (20, 700), (3000, 40)])
def test_the_people_of_each_patch_are_laid_over_the_photo(size):
    photo = np.full((*size, 3), 128, np.uint8)
    counts = np.zeros([-(-side // 32) for side in size])
    counts[0, 0] = 4.0
    figure = overlay_figure(photo, counts, "photo.jpg: 4 people")
    photo_axes, bar = figure.axes
    assert photo_axes.get_title() == "photo.jpg: 4 people"
    assert "people in a patch" in bar.get_xlabel() + bar.get_ylabel()
    _, colours = photo_axes.images
    shown = colours.get_array()
    assert shown[0, 0] == 4.0
    assert shown.mask.sum() == counts.size - 1  # nothing is drawn where nobody is
    assert pixels(figure).std() > 10


def test_a_note_below_the_title_is_whole():
    note = "its longer side has 4,096 pixels, and no photo that the model learnt from had more than 1,024."
    figure = overlay_figure(np.zeros((64, 64, 3), np.uint8), np.ones((2, 2)), "12 people\na.jpg", 1.0, note)
    first, second, *rest = figure.axes[0].get_title().splitlines()
    assert (first, second, " ".join(rest)) == ("12 people", "a.jpg", note)
    assert len(rest) == 1
    narrow = overlay_figure(np.zeros((640, 64, 3), np.uint8), np.ones((20, 2)), "12 people", 1.0, note)
    assert " ".join(narrow.axes[0].get_title().splitlines()) == f"12 people {note}"


def test_a_map_must_fit_the_photo():
    with pytest.raises(LibraError, match="patches"):
        overlay_figure(np.zeros((64, 64, 3), np.uint8), np.zeros((3, 2)), "")


def test_a_patch_is_told_in_pixels_of_the_photo():
    image, counts = np.zeros((64, 64, 3), np.uint8), np.ones((2, 2))
    bars = [overlay_figure(image, counts, "", scale).axes[1] for scale in (1.0, 1.5, 2.0)]
    labels = [bar.get_ylabel() for bar in bars]  # beside a square photo
    assert labels == [f"people in a patch of {side} × {side} pixels" for side in ("32", "21.3", "16")]


def test_the_course_of_a_video():
    figure = course_figure([0.0, 1.0], [10.0, 14.0], "clip.mp4")
    (ax,) = figure.axes
    assert ax.lines[0].get_ydata() == pytest.approx([10.0, 14.0])
    assert ax.get_ylim()[0] == 0


@pytest.mark.parametrize("name", [r"b$\foo$.jpg", "a$x_1$.jpg", "caf\udce9.jpg", "one$.jpg"])
def test_any_name_can_be_written_over_a_picture(name):
    from libra_gym.rendering.names import written

    photo = np.zeros((64, 64, 3), np.uint8)
    pixels(overlay_figure(photo, np.ones((2, 2)), name))
    pixels(course_figure([0.0, 1.0], [3.0, 4.0], name))
    assert written("plain.jpg") == "plain.jpg"


def test_a_long_name_loses_its_middle_and_the_count_stays():
    figure = overlay_figure(np.zeros((420, 240, 3), np.uint8), np.ones((14, 8)), "12 people\n" + "a" * 60 + "b" * 60)
    first, second = figure.axes[0].get_title().splitlines()
    assert first == "12 people"
    assert "…" in second
    assert second.startswith("aaa")
    assert second.endswith("bbb")
    assert len(second) < 80
