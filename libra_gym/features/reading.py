"""Opening and checking a feature cache; neither reads more of the features than it must."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from libra_gym.bank import BankImage, FeatureBank
from libra_gym.counts import HeadDensity, Kernel, Points, inside
from libra_gym.datasets import DATASETS, dataset_class
from libra_gym.datasets.views import scaled_size
from libra_gym.errors import LibraError
from libra_gym.features.manifest import Manifest, PhotoRecord, Shard, remake
from libra_gym.features.storage import sha256


class ShardRows:
    """The rows of several mapped tensors as if they were one: only what is asked for is read from disk."""

    def __init__(self, parts: list[Tensor]) -> None:
        self.parts = parts
        self.ends = torch.tensor([len(part) for part in parts]).cumsum(0)

    def __len__(self) -> int:
        return int(self.ends[-1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and channels."""
        return len(self), self.parts[0].shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The type in which the features are stored."""
        return self.parts[0].dtype

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        """Rows by number, or a run of them; a run within one shard is not copied."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            pieces = self._pieces(start, stop)
            return (pieces[0] if len(pieces) == 1 else torch.cat([self.parts[0][:0], *pieces]))[::step]
        rows = (index.nonzero().squeeze(1) if index.dtype == torch.bool else index).cpu()
        rows = torch.where(rows < 0, rows + len(self), rows)
        if len(self.parts) == 1:
            return self.parts[0][rows]
        shard = torch.bucketize(rows, self.ends, right=True)
        out = torch.empty((*rows.shape, self.shape[1]), dtype=self.dtype)
        for number in shard.unique().tolist():
            here = shard == number
            part = self.parts[number]  # a row beyond the last shard is an IndexError here
            out[here] = part[rows[here] - (self.ends[number] - len(part))]
        return out

    def run(self, start: int, stop: int) -> ShardRows:
        """The rows from `start` to before `stop`, still mapped."""
        return ShardRows(self._pieces(start, stop))

    def _pieces(self, start: int, stop: int) -> list[Tensor]:
        pieces = []
        for part, end in zip(self.parts, self.ends.tolist()):
            begin = end - len(part)
            if start < end and begin < stop:
                pieces.append(part[max(start - begin, 0) : stop - begin])
        return pieces

    def to(self, device: torch.device | str) -> Tensor:
        """All rows as one tensor."""
        return self[:].to(device)


def open_features(directory: str | Path, kernel: Kernel | None = None) -> FeatureBank:
    """The bank in a finished feature cache, its features mapped from disk and not read.

    With a `kernel` the counts are derived anew from the stored dots; otherwise they are those of its own kernel.
    Intervals are fitted to the training photos where there are any, so that nothing of the others shows in them.
    """
    directory = Path(directory)
    manifest = Manifest.load(directory)
    if not manifest.complete:
        raise LibraError(
            f"{directory} is not finished ({len(manifest.shards)} of {manifest.recipe.shards} shards); run the `libra "
            "features` command that made it again, and it goes on from there"
        )
    parts, counts, images, points = [], [], [], []
    photos: dict[str, tuple[int, int, int]] = {}
    for shard in manifest.shards:
        tensors = map_shard(directory, shard, manifest)
        parts.append(tensors["features"])
        if kernel is None:
            counts.append(tensors["counts"].numpy())
        for photo, dots in split_dots(shard, tensors["points"]):
            natural = scaled_size(photo.size, photo.views[0].scale / manifest.recipe.scale)
            photos[photo.name] = (*natural, int(inside(dots, photo.size).sum()))
            density = None if kernel is None else HeadDensity(dots, photo.size, kernel)
            for number, view in enumerate(photo.views):
                seen = view.apply_points(dots, photo.size)
                whole = not view.mirror and view.size == scaled_size(photo.size, view.scale)
                name = photo.name if whole else f"{photo.name}#{number}"
                source = photo.name if "#" in photo.name else None
                images.append(BankImage(name, photo.split, *view.grid, view.size, float(len(seen)), source))
                points.append(seen)
                if density is not None:
                    counts.append(view.integrate(density).ravel())
    people = np.concatenate(counts)
    recipe = manifest.recipe
    meta = {
        "dataset": recipe.dataset,
        "split": recipe.split,
        "backbone": recipe.backbone,
        "weights": recipe.weights,
        "kernel": (kernel or recipe.kernel).to_dict(),
        "crops": recipe.crops,
        "mirror": recipe.mirror,
        "grids": recipe.grids,
        "scale": recipe.scale,
        "photos": photos,
        "shrunk": _shrunk(manifest),
        "skipped": [photo.name for photo in manifest.skipped],
        "files": {photo.name: photo.sha256 for shard in manifest.shards for photo in shard.photos},
    }
    return FeatureBank(
        directory.resolve().name,
        ShardRows(parts),
        torch.from_numpy(people),
        tuple(images),
        points=tuple(points),
        meta=meta,
        divide=dataset_class(recipe.dataset).divide if recipe.dataset in DATASETS else None,
    )


def _shrunk(manifest: Manifest) -> dict[str, float]:
    """The scale of each photo that its data set limits in size; the cache's own scale comes on top."""
    photos = (photo for shard in manifest.shards for photo in shard.photos)
    scales = {photo.name: photo.views[0].scale / manifest.recipe.scale for photo in photos}
    return {name: scale for name, scale in scales.items() if scale != 1.0}


def verify_features(directory: str | Path) -> list[str]:
    """A sentence for each shard whose bytes are not those that were written; a damaged manifest is an error."""
    directory = Path(directory)
    manifest = Manifest.load(directory)
    return [fault for shard in manifest.shards if (fault := shard_fault(directory, shard, manifest))]


def shard_fault(directory: Path, shard: Shard, manifest: Manifest) -> str | None:
    """What is wrong with a shard, if anything is; reads all of it."""
    path = directory / shard.file
    if not path.is_file():
        return f"{path} is missing; make the cache anew with {remake(manifest.recipe, directory)}"
    if path.stat().st_size != shard.bytes or sha256(path) != shard.sha256:
        return f"{path} is not what was written; make the cache anew with {remake(manifest.recipe, directory)}"
    return None


def map_shard(directory: Path, shard: Shard, manifest: Manifest) -> dict[str, Tensor]:
    """The tensors of a shard, mapped from disk."""
    path = directory / shard.file
    try:
        if path.stat().st_size != shard.bytes:
            raise LibraError(
                f"{path} has {path.stat().st_size} bytes instead of {shard.bytes}; make the cache anew with "
                f"{remake(manifest.recipe, directory)}"
            )
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in ("features", "counts", "points")}
    except (OSError, SafetensorError) as error:
        raise LibraError(
            f"{path} cannot be read ({error}); make the cache anew with {remake(manifest.recipe, directory)}"
        ) from error


def split_dots(shard: Shard, points: Tensor) -> list[tuple[PhotoRecord, Points]]:
    """Each photo of a shard with its dots."""
    dots = points.split([photo.dots for photo in shard.photos])
    return [(photo, part.numpy()) for photo, part in zip(shard.photos, dots)]
