"""Other data sets in the options of a command: NAME=DIR, or NAME:SPLIT=DIR."""

from __future__ import annotations

from pathlib import Path

from libra_gym.errors import LibraError


def parse_source(text: str, option: str) -> tuple[str, str | None, Path]:
    """Name, split and directory; a split may hold colons of its own, as `train:1/5` does."""
    source, _, directory = text.partition("=")
    name, _, split = source.partition(":")
    if not name or not directory:
        raise LibraError(f"{option} {text!r} names no data set; write NAME=DIR or NAME:SPLIT=DIR.")
    return name, split or None, Path(directory).absolute()
