"""Names of files in pictures, letter by letter as they are."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_USUAL: Final = "DejaVu Sans"
_BOXES: Final = "Last Resort"


def written(name: str) -> str:
    """A name for matplotlib, which takes what stands between dollar signs for a formula and cannot draw lone bytes."""
    return name.encode("utf-8", "replace").decode("utf-8").replace("$", r"\$")


def shortened(name: str, letters: int) -> str:
    """A name with its middle left out if it has more letters than this."""
    if len(name) <= letters:
        return name
    kept = max(letters - 1, 2)
    return f"{name[: (kept + 1) // 2]}…{name[-(kept // 2) :]}"


def families(text: str) -> list[str]:
    """The fonts that a text needs: matplotlib's own, and for letters that it lacks, such as Chinese, what is installed.

    A letter that no font of the machine has is drawn as a box.
    """
    return [_USUAL, *_others(frozenset(map(ord, text)) - _letters_of(_usual_file()) - {ord("\n")})]


@lru_cache(maxsize=256)
def _others(missing: frozenset[int]) -> tuple[str, ...]:
    """As few installed fonts as a first look finds that have these letters."""
    from matplotlib.font_manager import fontManager

    names: list[str] = []
    for font in fontManager.ttflist:
        if not missing:
            break
        upright = font.style == "normal" and font.name != _USUAL and not font.name.startswith(_BOXES)
        if upright and missing & (letters := _letters_of(font.fname)):
            names.append(font.name)
            missing -= letters
    return tuple(names)


@lru_cache(maxsize=1)
def _usual_file() -> str:
    from matplotlib.font_manager import findfont

    return str(findfont(_USUAL))


@lru_cache(maxsize=1024)
def _letters_of(file: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(file).get_charmap())
    except (OSError, RuntimeError):  # a font that was removed, or that FreeType cannot read
        return frozenset()
