"""Pictures of the scale: one patch on the balance, the paper's weighing figure (Sec. 4.1), count maps and animations.

Everything here takes plain arrays and numbers and gives pictures; it knows neither environments nor agents. Matplotlib
is imported by the functions that need it.
"""

from libra_gym.rendering.animation import animate_weighing
from libra_gym.rendering.diagnostics import (
    actions_figure,
    calibration_figure,
    causes_figure,
    confusion_figure,
    scatter_figure,
)
from libra_gym.rendering.figures import CountMaps, count_map_figure, gallery_figure, weighing_figure
from libra_gym.rendering.scale import ScaleView, ansi_scale, draw_scale

__all__ = [
    "CountMaps",
    "ScaleView",
    "actions_figure",
    "animate_weighing",
    "ansi_scale",
    "calibration_figure",
    "causes_figure",
    "confusion_figure",
    "count_map_figure",
    "draw_scale",
    "gallery_figure",
    "scatter_figure",
    "weighing_figure",
]
