"""The paper's figures, from `paper.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml


@dataclass(frozen=True)
class Figure:
    """A number, and its standard deviation over runs where there is one."""

    mean: float
    std: float | None = None

    def __str__(self) -> str:
        """With one decimal, as the paper prints them."""
        return f"{self.mean:.1f}" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class PaperTable:
    """One of the paper's tables."""

    title: str
    label: str
    """Of the table or section in the paper's source."""
    metrics: tuple[str, ...]
    rows: dict[str, dict[str, tuple[Figure, ...]]]
    """Method → where → a figure per metric."""
    along: str = ""
    """What the rows are, where they are numbers."""

    def figures(self, row: str, where: str) -> tuple[Figure, ...] | None:
        """What the paper prints there, if anything."""
        return self.rows.get(row, {}).get(where)


@cache
def paper_tables() -> dict[str, PaperTable]:
    """All tables by the names that `libra reproduce` gives them."""
    text = resources.files("experiments.reproduce").joinpath("paper.yaml").read_text(encoding="utf-8")
    return {name: _table(content) for name, content in yaml.safe_load(text).items()}


def _table(content: dict[str, Any]) -> PaperTable:
    rows = {
        row: {where: tuple(map(_figure, figures)) for where, figures in places.items()}
        for row, places in content["rows"].items()
    }
    return PaperTable(content["title"], content["label"], tuple(content["metrics"]), rows, content.get("along", ""))


def _figure(printed: float | dict[str, float]) -> Figure:
    return Figure(**printed) if isinstance(printed, dict) else Figure(float(printed))
