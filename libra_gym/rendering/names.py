"""Names of files in pictures, letter by letter as they are."""

from __future__ import annotations


def written(name: str) -> str:
    """A name for matplotlib, which takes what stands between dollar signs for a formula and cannot draw lone bytes."""
    return name.encode("utf-8", "replace").decode("utf-8").replace("$", r"\$")


def shortened(name: str, letters: int) -> str:
    """A name with its middle left out if it has more letters than this."""
    if len(name) <= letters:
        return name
    kept = max(letters - 1, 2)
    return f"{name[: (kept + 1) // 2]}…{name[-(kept // 2) :]}"
