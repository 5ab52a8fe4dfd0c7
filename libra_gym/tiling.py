"""Features of photos of any size in bounded memory: tile by tile, and yet the same as in one piece.

A feature of a convolutional chain such as VGG16 depends on the pixels within a finite reach of its patch (for VGG16 the
receptive field is 212 pixels wide, so that the reach is 90). So a tile is looked at together with a halo at least
that wide, and the features of the halo, which the convolutions' padding has touched, are thrown away. Only at the
photo's own border does the padding reach a feature that is kept, as it does in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from libra_gym.backbones import STRIDE, Backbone, preprocess
from libra_gym.errors import LibraError
from libra_gym.photos import Pixels

TILE_PIXELS = 1 << 21
"""Pixels that go through the backbone at once, halo included: a frame of 1920 × 1080, or 1 GB of memory for VGG16."""
UNTILED_SIDE = 1 << 12
UNTILED_PIXELS = UNTILED_SIDE**2
"""The largest photo for a backbone that must see it in one piece."""

_LOCAL = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)
_POINTWISE = (nn.ReLU, nn.BatchNorm2d, nn.Identity, nn.Dropout)


@dataclass(frozen=True)
class Tile:
    """A rectangle of patches, and the larger one that must be looked at for its features."""

    rows: slice
    cols: slice
    seen_rows: slice
    seen_cols: slice

    @property
    def kept(self) -> tuple[slice, slice]:
        """Where the tile lies in what is seen."""
        top, left = self.rows.start - self.seen_rows.start, self.cols.start - self.seen_cols.start
        return (
            slice(top, top + self.rows.stop - self.rows.start),
            slice(left, left + self.cols.stop - self.cols.start),
        )


def reach(backbone: nn.Module) -> int | None:
    """How many pixels beyond its patch a feature depends on.

    None if that cannot be told, because the backbone is no plain chain of convolutions and poolings: a squeeze-excite
    block (MobileNet, EfficientNet) looks at the whole photo.
    """
    before = after = 0
    jump = 1  # pixels from one place of the present map to the next
    for layer in _leaves(backbone):
        if isinstance(layer, _LOCAL):
            geometry = [_side(getattr(layer, name, 1)) for name in ("kernel_size", "stride", "padding", "dilation")]
            if min(geometry) < 0:
                return None
            kernel, stride, padding, dilation = geometry
            before += padding * jump
            after += ((kernel - 1) * dilation - padding) * jump
            jump *= stride
        elif not isinstance(layer, _POINTWISE):
            return None
    return max(before, after - (jump - 1), 0)


def tiles(rows: int, cols: int, halo: int, limit: int) -> list[Tile]:
    """Cut a grid of patches so that no tile sees more than `limit` patches and as few as possible are seen twice.

    All in patches; the halo ends at the grid's border. A limit too small for any tile with its halo gives tiles of one
    patch.
    """
    if rows * cols <= limit:
        return [Tile(slice(0, rows), slice(0, cols), slice(0, rows), slice(0, cols))]
    best = (rows, cols)  # the number of tiles from top to bottom and from left to right
    least = None
    for down in range(1, rows + 1):
        width = limit // (-(-rows // down) + 2 * halo) - 2 * halo
        if width < 1:
            continue
        across = -(-cols // width)
        seen = (rows + 2 * halo * down) * (cols + 2 * halo * across)
        if least is None or seen < least:
            least, best = seen, (down, across)
    return [
        Tile(part_rows, part_cols, _widen(part_rows, halo, rows), _widen(part_cols, halo, cols))
        for part_rows in _parts(rows, best[0])
        for part_cols in _parts(cols, best[1])
    ]


@torch.inference_mode()
def tiled_features(
    backbone: Backbone,
    pixels: Pixels,
    tile_pixels: int = TILE_PIXELS,
    look: nn.Module | None = None,
    advice: str = "make it smaller",
) -> Iterator[tuple[Tile, Tensor]]:
    """Each tile of a photo with its features `(channels, rows, cols)`.

    Together they are the features of the photo in one piece, up to the rounding of floating-point numbers. A backbone
    whose reach is not finite sees the photo in one piece, which must then be of moderate size. `look` is the part of
    the backbone whose map is wanted instead of the last one; it may have several cells to a patch. `advice` is what to
    do about a photo that is too large: how photos get their size is known to the caller alone.
    """
    look = backbone if look is None else look
    height, width = pixels.shape[:2]
    rows, cols = -(-height // STRIDE), -(-width // STRIDE)
    device = next(backbone.parameters()).device
    finite = reach(backbone)
    if finite is None:
        if height * width > UNTILED_PIXELS:
            raise LibraError(
                f"A photo that is looked at in {width} × {height} pixels is too large for the backbone "
                f"{backbone.name!r}, which must see it in one piece; {advice}."
            )
        finite, tile_pixels = 0, rows * cols * STRIDE**2
    for tile in tiles(rows, cols, -(-finite // STRIDE), tile_pixels // STRIDE**2):
        window = pixels[times(tile.seen_rows, STRIDE), times(tile.seen_cols, STRIDE)]
        features = look(preprocess(torch.as_tensor(window).to(device))[None])[0]
        cells = features.shape[1] // (tile.seen_rows.stop - tile.seen_rows.start)
        yield tile, features[:, times(tile.kept[0], cells), times(tile.kept[1], cells)]


def whole_features(
    backbone: Backbone, pixels: Pixels, tile_pixels: int = TILE_PIXELS, look: nn.Module | None = None
) -> Tensor:
    """The features of a photo `(channels, rows, cols)`, on the CPU, looked at tile by tile."""
    rows, cols = (-(-side // STRIDE) for side in pixels.shape[:2])
    whole = torch.empty(0)
    for tile, features in tiled_features(backbone, pixels, tile_pixels, look):
        cells = features.shape[1] // (tile.rows.stop - tile.rows.start)
        if not len(whole):
            whole = torch.empty(len(features), rows * cells, cols * cells)
        whole[:, times(tile.rows, cells), times(tile.cols, cells)] = features.float().cpu()
    return whole


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested `Sequential`s in their order; anything else is a layer."""
    if isinstance(module, nn.Sequential):
        for child in module:
            yield from _leaves(child)
    else:
        yield module


def _side(size: object) -> int:
    """A layer's setting as one number; −1 where it is not one for both directions."""
    if isinstance(size, tuple):
        return _side(size[0]) if len(set(size)) == 1 else -1
    return size if isinstance(size, int) else -1


def _parts(length: int, number: int) -> list[slice]:
    edges = [length * part // number for part in range(number + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def _widen(part: slice, halo: int, length: int) -> slice:
    return slice(max(part.start - halo, 0), min(part.stop + halo, length))


def times(patches: slice, factor: int) -> slice:
    """A run of patches in units of which each has so many."""
    return slice(patches.start * factor, patches.stop * factor)
