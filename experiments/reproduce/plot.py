"""The picture of a finished table: the paper's figures and ours, a panel per metric."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from experiments.reproduce.paper import Figure
from experiments.reproduce.results import Line

PAPER, OURS = "#8a94a3", "#1f6fb4"


def draw(metrics: Sequence[str], lines: Sequence[Line], along: str = "") -> bytes:
    """A PNG: curves where the rows are numbers of what `along` says, else bars. A missing figure is not drawn."""
    curve = all(_is_number(line.row) for line in lines)
    compared = any(cell.paper is not None for line in lines for cell in line.cells)
    judged = {line.judged for line in lines if line.judged}
    legend = {"paper": "paper, on the test set", "ours": f"ours, on {judged.pop()}" if len(judged) == 1 else "ours"}
    height = 3.2 if curve else 1.2 + 0.45 * len(lines)
    picture = Picture(figsize=(1.5 + 3.4 * len(metrics), height), layout="constrained")
    panels = picture.subplots(1, len(metrics), squeeze=False, sharey=not curve)[0]
    for index, (metric, panel) in enumerate(zip(metrics, panels)):
        for name, colour, figures in (
            ("paper", PAPER, [line.cells[index].paper for line in lines]),
            ("ours", OURS, [line.cells[index].ours for line in lines]),
        ):
            if name == "paper" and not compared:
                continue
            if curve:
                _curve(panel, lines, figures, legend[name], colour)
            else:
                _bars(panel, figures, legend[name], colour, {"paper": -0.2, "ours": 0.2}[name] if compared else 0.0)
        panel.set_title(metric)
        if curve:
            panel.set_xlabel(along)
        panel.spines[["top", "right"]].set_visible(False)
    if not curve:
        panels[0].set_yticks(range(len(lines)), [_label(line, lines) for line in lines])
        panels[0].invert_yaxis()
    picture.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    content = io.BytesIO()
    picture.savefig(content, format="png", dpi=130)
    return content.getvalue()


def _curve(panel: Axes, lines: Sequence[Line], figures: Sequence[Figure | None], name: str, colour: str) -> None:
    means, deviations = _arrays(figures)
    x = [float(line.row) for line in lines]
    panel.errorbar(x, means, deviations, marker="o", capsize=3, color=colour, label=name)
    panel.set_xticks(x)


def _bars(panel: Axes, figures: Sequence[Figure | None], name: str, colour: str, beside: float) -> None:
    means, deviations = _arrays(figures)
    y = np.arange(len(figures)) + beside
    panel.barh(y, means, 0.36, xerr=deviations, color=colour, label=name)
    for place, mean, deviation in zip(y, means, np.nan_to_num(deviations)):
        if np.isfinite(mean):
            panel.text(mean + deviation, place, f" {mean:.1f}", va="center", fontsize=8)
    panel.margins(x=0.15)


def _arrays(figures: Sequence[Figure | None]) -> tuple[np.ndarray, np.ndarray]:
    means = np.array([np.nan if figure is None else figure.mean for figure in figures])
    deviations = np.array([np.nan if figure is None or figure.std is None else figure.std for figure in figures])
    return means, deviations


def _label(line: Line, lines: Sequence[Line]) -> str:
    """Row and place, as far as they tell the lines apart."""
    if len({other.where for other in lines}) == 1:
        return line.row
    return line.where if len({other.row for other in lines}) == 1 else f"{line.row}, {line.where}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
