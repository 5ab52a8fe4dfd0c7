"""The frozen stem's maps, each computed once: in memory or on disk, up to a limit.

A map is that of a whole look, so that a crop cut out of it has seen what lies round it. When the limit is reached,
further crops go through the stem each time.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from agents.pretraining.looks import Crop, Look, Scene, padded_pixels, padded_size
from libra_gym.counts import PATCH, Size
from libra_gym.errors import LibraError
from libra_gym.features.storage import remove_leftovers, write_whole
from libra_gym.tiling import TILE_PIXELS, reach, tiles, times

Where: TypeAlias = Literal["disk", "ram", "none"]

_MAP = "map"
_ABANDONED = 86400.0  # seconds after which a half-written map is not another run's work in progress


class StemCache:
    """Crops and wholes of the stem's maps, from the cache where they are in it.

    Args:
        stem: the frozen layers, on the device where they are.
        stride: of its maps.
        where: `disk`, `ram`, or `none` for no cache.
        directory: of the files, for `disk`; several runs may share it.
        limit: bytes that may be stored.
        origin: distinguishes the stem's weights.
        device: where the stem is; an empty one does not say.
    """

    def __init__(
        self,
        stem: nn.Module,
        stride: int,
        where: Where,
        directory: Path | None,
        limit: float,
        origin: str,
        device: torch.device | str = "cpu",
    ) -> None:
        self.stem, self.stride, self.where, self.limit = stem, stride, where, limit
        self.device = torch.device(device)
        self.stored = 0
        self._ram: dict[str, Tensor] = {}
        self._directory: Path | None = None
        if where == "disk":
            if directory is None:
                raise LibraError("a cache on disk needs a directory")
            self._directory = directory / hashlib.sha256(origin.encode()).hexdigest()[:16]
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LibraError(
                    f"{directory} cannot be written to ({error.strerror}); give another --cache-dir"
                ) from None
            remove_leftovers(self._directory, older=_ABANDONED)
            self.stored = sum(file.stat().st_size for file in self._directory.glob("*.safetensors"))

    def __getstate__(self) -> dict[str, Any]:
        """For processes that read photos: they have no use for the stem, which may be on a GPU."""
        return {**self.__dict__, "stem": None, "_ram": {}}

    def crop(self, scene: Scene, look: Look, crop: Crop) -> Tensor:
        """The crop's part of the look's map, `float32 (channels, side / stride, side / stride)`."""
        top, left, side = crop.top // self.stride, crop.left // self.stride, crop.side // self.stride
        key = self._key(scene, look, crop.side)
        if (found := self._find(key, (top, left, side))) is not None:
            return found.float()
        if not self._room(padded_size(look.view.size, crop.side)):
            return self.run(crop.pixels(look, scene.photo.image())[None])[0].float().cpu()  # as those that are kept
        image = padded_pixels(look, scene.photo.image(), crop.side)
        whole = self._keep(key, self.run(image[None])[0])
        return whole[:, top : top + side, left : left + side].float()

    def whole(self, scene: Scene, look: Look) -> Tensor:
        """The look's whole map, `float32 (channels, H / stride, W / stride)`."""
        key = self._key(scene, look, 0)
        if (found := self._find(key, None)) is not None:
            return found.float()
        image = padded_pixels(look, scene.photo.image())
        found = self.run(image[None])[0]
        return (self._keep(key, found) if self._room(padded_size(look.view.size)) else found).float()

    @torch.inference_mode()
    def run(self, images: Tensor) -> Tensor:
        """Images through the stem, on its device; large ones tile by tile, so that memory does not grow with them."""
        height, width = images.shape[-2:]
        halo = reach(self.stem)
        if height * width <= TILE_PIXELS or halo is None:
            return self._run(images)
        cells = PATCH // self.stride
        maps: Tensor | None = None
        for tile in tiles(height // PATCH, width // PATCH, -(-halo // PATCH), TILE_PIXELS // PATCH**2):
            seen = self._run(images[..., times(tile.seen_rows, PATCH), times(tile.seen_cols, PATCH)])
            kept = seen[..., times(tile.kept[0], cells), times(tile.kept[1], cells)]
            if maps is None:
                maps = seen.new_empty(*seen.shape[:2], height // self.stride, width // self.stride)
            maps[..., times(tile.rows, cells), times(tile.cols, cells)] = kept
        assert maps is not None
        return maps

    def _run(self, images: Tensor) -> Tensor:
        images = images.to(self.device)
        if len(list(self.stem.children())):
            images = images.contiguous(memory_format=torch.channels_last)
        return self.stem(images).contiguous()

    def _key(self, scene: Scene, look: Look, least: int) -> str:
        name = f"{scene.dataset}|{scene.photo.name}|{scene.version}|{scene.size}|{look.key}|{least}"
        return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:24]

    def _room(self, size: Size) -> bool:
        """Whether one more map fits; its bytes are estimated from the padded look's size, before it is computed."""
        if self.where == "none":
            return False
        height, width = size
        return self.stored + 2 * self._channels() * (height // self.stride) * (width // self.stride) <= self.limit

    def _channels(self) -> int:
        convolutions = [unit for unit in self.stem.modules() if isinstance(unit, nn.Conv2d)]
        return convolutions[-1].out_channels if convolutions else 3

    def _find(self, key: str, part: tuple[int, int, int] | None) -> Tensor | None:
        if self.where == "ram":
            found = self._ram.get(key)
            if found is None or part is None:
                return found
            top, left, side = part
            return found[:, top : top + side, left : left + side]
        if self._directory is None or not (path := self._directory / f"{key}.safetensors").exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                if part is None:
                    return file.get_tensor(_MAP)
                top, left, side = part
                return file.get_slice(_MAP)[:, top : top + side, left : left + side]
        except (SafetensorError, OSError):
            path.unlink(missing_ok=True)  # damaged: it is made anew
            return None

    def _keep(self, key: str, whole: Tensor) -> Tensor:
        """Store a map in half precision; what is used is what is stored, so that the first time equals the next."""
        half = whole.half().cpu()
        self.stored += half.numel() * 2
        if self.where == "ram":
            self._ram[key] = half
        elif self._directory is not None:
            write_whole(self._directory / f"{key}.safetensors", save({_MAP: half}))
        return half
