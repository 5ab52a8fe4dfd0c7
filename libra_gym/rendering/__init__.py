"""Pictures of the scale: one patch on the balance, the paper's weighing figure (Sec. 4.1), count maps and animations.

Everything here takes plain arrays and numbers and gives pictures; it knows neither environments nor agents. Matplotlib
is imported by the functions that need it.
"""

from libra_gym.rendering.animation import animate_weighing
from libra_gym.rendering.figures import count_map_figure, weighing_figure
from libra_gym.rendering.scale import ScaleView, ansi_scale, draw_scale

__all__ = ["ScaleView", "animate_weighing", "ansi_scale", "count_map_figure", "draw_scale", "weighing_figure"]
