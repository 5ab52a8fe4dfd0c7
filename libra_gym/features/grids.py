"""Grids of patches half a patch apart, all of one pass of the backbone.

VGG16's last layer pools squares of two by two cells, each 16 pixels wide, into the feature of a patch. Pooled one cell
further to the right or down, the same cells are the features of other patches of the same photo: three more grids to
learn from that cost no convolution.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from libra_gym.backbones import Backbone
from libra_gym.counts import PATCH
from libra_gym.datasets.views import View
from libra_gym.errors import LibraError

HALF = PATCH // 2
_MOVES = ((0, 0), (1, 0), (0, 1), (1, 1))  # half a patch right, and down


def has_grids(backbone: Backbone) -> bool:
    """Whether a patch's feature is the maximum of its four cells."""
    _, last = list(backbone.units())[-1]
    return (
        not backbone.levels
        and isinstance(last, nn.MaxPool2d)
        and (last.kernel_size, last.stride, last.padding, last.dilation) == (2, 2, 0, 1)
    )


def cell_backbone(backbone: Backbone) -> nn.Sequential:
    """All layers but the last pooling, with the same weights: from images to cells, two by two a patch."""
    if not has_grids(backbone):
        raise LibraError(
            f"Backbone {backbone.name!r} does not end with a pooling of four cells, so it has no grids half a patch "
            "apart; take vgg16 or another VGG."
        )
    return nn.Sequential(*(unit for _, unit in list(backbone.units())[:-1]))


def moved_views(whole: View) -> list[View]:
    """A view on its own grid, and where there is room, on those half a patch further to the right, down, and both.

    A moved grid ends half a patch before the padded view does, so that all of its patches have all of their cells.
    """
    rows, cols = whole.grid
    views = []
    for right, down in _MOVES:
        if cols > right and rows > down:
            width = min(whole.width - right * HALF, (cols - right) * PATCH)
            height = min(whole.height - down * HALF, (rows - down) * PATCH)
            left = whole.width - right * HALF - width if whole.mirror else right * HALF
            views.append(replace(whole, x=whole.x + left, y=whole.y + down * HALF, width=width, height=height))
    return views


def pool_grids(cells: Tensor) -> list[Tensor]:
    """From cells `(channels, 2·rows, 2·cols)` to the features of each of `moved_views`, `(channels, rows', cols')`."""
    _, height, width = cells.shape
    return [
        max_pool2d(cells[:, down : height - down, right : width - right], 2)
        for right, down in _MOVES
        if width > 2 * right and height > 2 * down
    ]
