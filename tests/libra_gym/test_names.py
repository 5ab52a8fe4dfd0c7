"""Names in pictures: letters that matplotlib's own font lacks are found in other fonts."""

import io
import warnings

from matplotlib.figure import Figure

from libra_gym.rendering.names import families

LACKING = "\U0001d4ea"  # a script letter that matplotlib has in STIX alone
NOWHERE = "\U0010fff0"


def test_plain_names_need_no_other_font():
    assert families("IMG_1.jpg\n28 people …") == ["DejaVu Sans"]


def test_a_letter_that_the_usual_font_lacks_is_taken_from_another():
    usual, *others = families(f"{LACKING}.jpg")
    assert usual == "DejaVu Sans"
    assert others
    figure = Figure()
    figure.text(0.5, 0.5, LACKING, fontfamily=families(LACKING))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of letters that it cannot draw
        figure.savefig(io.BytesIO())


def test_a_letter_that_no_font_has_is_no_error():
    assert families(NOWHERE) == ["DejaVu Sans"]
