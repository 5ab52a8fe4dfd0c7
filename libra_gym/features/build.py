"""Building a feature cache: photos through the backbone, shard after shard, so that a crash costs one shard at most.

The paper's agents see a patch only through its frozen feature vector (Section 3.1), so this is the one place that runs
the backbone.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256 as digest
from itertools import chain, islice
from math import prod
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from libra_gym.backbones import IMAGENET_MEAN, IMAGENET_STD, STRIDE, Backbone, preprocess
from libra_gym.counts import DEFAULT_KERNEL, KERNELS, HeadDensity, Kernel, Points, Size
from libra_gym.datasets import CrowdDataset, Photo
from libra_gym.datasets.views import View, full, natural_scale, paper_crops, qnrf_crops
from libra_gym.errors import LibraError
from libra_gym.features.grids import cell_backbone, moved_views, pool_grids
from libra_gym.features.manifest import MANIFEST, Manifest, PhotoRecord, Recipe, Shard, Skipped, check_same, remake
from libra_gym.features.reading import map_shard, shard_fault, split_dots
from libra_gym.features.storage import locked, remove_leftovers, sha256, write_whole
from libra_gym.splits import is_training, may_train
from libra_gym.tiling import UNTILED_PIXELS, reach, whole_features
from libra_gym.workers import leave_signals

Crops = Literal["none", "paper"]
Progress = Callable[[int, int], None]
"""Called with the photos that are done and all photos."""

MOST_ENLARGED = 16.0
"""How many times as large as it is a photo may be looked at."""
RESUME = (
    "what is finished is kept, so mend it and run the same command again, or leave such photos out (`libra features "
    "--skip-bad`)"
)
"""What to do about a photo that cannot be read."""
PHOTOS_PER_SHARD = 16
BATCH_PIXELS = 1 << 19
"""Views of one size go through the backbone together up to this many pixels; VGG16 needs about 0.6 kB for each."""
LARGE_PIXELS = 1 << 23
"""A larger photo goes through the backbone in tiles: it would need more than 5 GB."""
PREPROCESSING = {
    "colour": "RGB / 255",
    "mean": list(IMAGENET_MEAN),
    "std": list(IMAGENET_STD),
    "padding": f"zeros after normalisation, bottom and right, to a multiple of {STRIDE}",
}


def build_features(
    dataset: CrowdDataset,
    split: str,
    backbone: Backbone,
    out: str | Path,
    *,
    kernel: Kernel = KERNELS[DEFAULT_KERNEL],
    crops: Crops = "none",
    mirror: bool = False,
    grids: bool = False,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float16,
    precision: torch.dtype = torch.float32,
    workers: int = 2,
    skip_bad: bool = False,
    rebuild: bool = False,
    progress: Progress | None = None,
    remedy: str = RESUME,
) -> Manifest:
    """Make the feature cache of a split (or of several joined by `+`) in the directory `out`, or finish it.

    A cache that was begun is continued once its recipe, shards, photos and dots are found unchanged; a finished one is
    only checked. Stopped at any moment and started again, it comes out byte for byte the same.

    Args:
        dataset: where the photos are.
        split: which of them; each image of the bank remembers its own split.
        backbone: looks at the photos, on the device where it is.
        out: the directory of the cache.
        kernel: how heads are spread over patches. Dots are stored too, so `open_features` can use another.
        crops: `paper` takes the paper's crops and their mirrors instead of whole photos, of training photos only.
        mirror: take each whole photo's mirror too, of training photos only.
        grids: take the grids half a patch apart too, of training photos only. They are of the same pass of the
            backbone, so that four times as many patches cost little more time (`libra_gym.features.grids`).
        scale: make each photo larger or smaller first; below 1, crowds are denser than they were photographed.
        dtype: how features are stored, `torch.float16` or `torch.float32`.
        precision: in what the backbone computes, `torch.float32` or `torch.bfloat16` (faster where the machine has it).
        workers: processes which read and decode photos while the backbone works; 0 reads in this one.
        skip_bad: leave out photos that cannot be read and record them, instead of stopping.
        rebuild: throw away what is in `out` and begin anew.
        progress: told after each photo.
        remedy: what to tell a user to do about a photo that cannot be read, after a semicolon.
    """
    if not 0 < scale <= MOST_ENLARGED:
        raise LibraError(f"scale is {scale:g}, but it must be greater than 0 and at most {MOST_ENLARGED:g}.")
    if mirror and crops != "none":
        raise LibraError("The paper's crops are mirrored as they are; leave mirror out.")
    if scale != 1.0 and crops != "none":
        raise LibraError(f"scale is {scale:g}, but the paper's crops are of photos as they are; leave one of them out.")
    if grids and crops != "none":
        raise LibraError("The paper's crops have a grid of their own; leave grids out.")
    cells = cell_backbone(backbone) if grids else None
    out = Path(out)
    photos = _list_photos(dataset, split)
    learnt = is_training if crops != "none" else may_train  # crops stand in for their photo, which may be judged later
    if (mirror or grids or crops != "none") and not any(learnt(own) for _, own in photos):
        raise LibraError(
            f"Crops, mirror images and further grids are of training photos alone, and {split!r} is no training split."
        )
    recipe = Recipe(
        dataset=dataset.name,
        split=split,
        photos=tuple(photo.name for photo, _ in photos),
        backbone=backbone.name,
        weights=backbone.weights_hash,
        preprocessing=PREPROCESSING,
        kernel=kernel,
        crops=crops,
        mirror=mirror,
        grids=grids,
        scale=scale,
        dtype=_name(dtype),
        precision=_name(precision),
        photos_per_shard=PHOTOS_PER_SHARD,
    )
    with locked(out):
        remove_leftovers(out)
        if rebuild:
            for old in (out / MANIFEST, *out.glob("shard-*.safetensors")):
                old.unlink(missing_ok=True)
        manifest = Manifest(recipe)
        if (out / MANIFEST).exists():
            manifest = Manifest.load(out)
            check_same(manifest.recipe, recipe, out)
            _check_unchanged(manifest, [photo for photo, _ in photos], out)
        done = len(manifest.shards) * PHOTOS_PER_SHARD
        eye = None if reach(backbone) is not None else backbone.name
        loader = _loader(_Views(photos[done:], crops, mirror, grids, scale, dataset.name, eye), workers)
        if progress is not None:
            progress(min(done, len(photos)), len(photos))
        while not manifest.complete:
            work = _Shard(backbone, cells, kernel, dtype, precision)
            for loaded in islice(loader, PHOTOS_PER_SHARD):
                if isinstance(loaded, Skipped) and not skip_bad:
                    raise LibraError(f"{loaded.reason.rstrip('.')}; {remedy}")
                work.add(loaded)
                done += 1
                if progress is not None:
                    progress(done, len(photos))
            shard = work.write(out, len(manifest.shards))
            manifest = replace(manifest, shards=(*manifest.shards, shard))
            manifest.save(out)
    return manifest


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _list_photos(dataset: CrowdDataset, split: str) -> list[tuple[Photo, str]]:
    """Each photo once, with the first of the splits that has it."""
    found: dict[str, tuple[Photo, str]] = {}
    for part in split.split("+"):
        for photo in dataset.photos(part):
            found.setdefault(photo.name, (photo, part))
    return list(found.values())


def _check_unchanged(manifest: Manifest, photos: list[Photo], out: Path) -> None:
    """Refuse to go on if a finished shard is damaged, or was made from photos or dots that have changed since."""
    by_name = {photo.name: photo for photo in photos}
    remedy = f"make the cache anew with {remake(manifest.recipe, out)}"
    for shard in manifest.shards:
        if fault := shard_fault(out, shard, manifest):
            raise LibraError(fault)
        for record, dots in split_dots(shard, map_shard(out, shard, manifest)["points"]):
            photo = by_name[record.name]
            if _hash(photo.path) != record.sha256:
                raise LibraError(f"{photo.path} has changed since {out} was made; {remedy}")
            if not np.array_equal(photo.points(), dots, equal_nan=True):
                raise LibraError(f"the dots in {photo.labels} have changed since {out} was made; {remedy}")
        for skipped in shard.skipped:
            path = by_name[skipped.name].path
            if _hash(path) != skipped.sha256:
                raise LibraError(f"{path}, which was left out of {out}, has changed; {remedy}")


def _hash(path: Path) -> str:
    try:
        return sha256(path)
    except OSError:
        return ""


# ------------------------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True)
class _Loaded:
    """A photo's record and dots, and the pixels of each look at it with the number of its views.

    A look is what the backbone sees at once: a view, or all views that are grids of the same pixels. Pixels are tensors
    because these come from another process through shared memory. Arrays would take a pipe, and a worker whose reader
    was killed would wait at the full pipe for ever.
    """

    record: PhotoRecord
    points: Points
    looks: list[tuple[Tensor, int]]  # uint8 (height, width, 3)


class _Views(Dataset[_Loaded | Skipped]):
    """Photos, read and cut into views when asked for: the part of the work that happens in other processes."""

    def __init__(
        self,
        photos: list[tuple[Photo, str]],
        crops: Crops,
        mirror: bool,
        grids: bool,
        scale: float,
        dataset: str,
        untiled: str | None,
    ) -> None:
        self.photos = photos
        self.crops = crops
        self.mirror = mirror
        self.grids = grids
        self.scale = scale
        self.dataset = dataset
        self.untiled = untiled  # the backbone, where it must see each view in one piece

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, index: int) -> _Loaded | Skipped:
        photo, split = self.photos[index]
        try:
            image, points = photo.image(), photo.points()
        except LibraError as error:
            return Skipped(photo.name, _hash(photo.path), str(error))
        size = image.shape[0], image.shape[1]
        wholes = self._wholes(size, split, seed=zlib.crc32(photo.name.encode("utf-8", "surrogateescape")))
        if reason := self._too_large(photo, wholes):
            return Skipped(photo.name, _hash(photo.path), reason)
        views = [moved_views(whole) if self.grids and may_train(split) else [whole] for whole in wholes]
        record = PhotoRecord(photo.name, split, _hash(photo.path), size, len(points), tuple(chain(*views)))
        pixels = [torch.from_numpy(whole.apply_image(image)) for whole in wholes]
        return _Loaded(record, points, list(zip(pixels, map(len, views))))

    def _too_large(self, photo: Photo, views: list[View]) -> str:
        """What keeps a backbone from seeing a photo, or nothing."""
        height, width = max((view.size for view in views), key=prod)
        if self.untiled is None or height * width <= UNTILED_PIXELS:
            return ""
        return (
            f"The photo {photo.path}, looked at in {width} × {height} pixels, is too large for the backbone "
            f"{self.untiled!r}, which must see it in one piece; give a smaller --scale, or take a VGG"
        )

    def _wholes(self, size: Size, split: str, seed: int) -> list[View]:
        if self.crops == "paper" and is_training(split):
            return qnrf_crops(size, seed) if self.dataset == "ucf_qnrf" else paper_crops(size, seed)
        whole = full(size, scale=self.scale * natural_scale(self.dataset, size))
        return [whole, whole.mirrored()] if self.mirror and may_train(split) else [whole]


def _loader(views: _Views, workers: int) -> Iterator[_Loaded | Skipped]:
    """The photos in order; with workers, a few are read ahead."""
    if not len(views):
        return iter(())
    workers = min(workers, len(views))
    # A generator of its own, because a loader would otherwise draw a number from the program's.
    own = torch.Generator().manual_seed(0)
    return iter(DataLoader(views, batch_size=None, num_workers=workers, generator=own, worker_init_fn=leave_signals))


# --------------------------------------------------------------------------------------------------------- extracting


class _Waiting(NamedTuple):
    """A look on its way, with the place of its first view's features."""

    pixels: Tensor
    place: int
    views: int


class _Shard:
    """The photos of one shard on their way through the backbone."""

    def __init__(
        self,
        backbone: Backbone,
        cells: nn.Module | None,
        kernel: Kernel,
        dtype: torch.dtype,
        precision: torch.dtype,
    ) -> None:
        self.backbone = backbone
        self.cells = cells
        self.kernel = kernel
        self.dtype = dtype
        self.precision = precision
        self.device = next(backbone.parameters()).device
        self.features: list[Tensor] = []  # of each view (patches, channels); empty while it waits
        self.waiting: defaultdict[Size, list[_Waiting]] = defaultdict(list)
        self.counts: list[NDArray[np.float32]] = []
        self.points: list[Points] = [np.zeros((0, 2), np.float32)]
        self.photos: list[PhotoRecord] = []
        self.skipped: list[Skipped] = []

    def add(self, loaded: _Loaded | Skipped) -> None:
        """Take a photo; looks wait until there are enough of their size for a batch."""
        if isinstance(loaded, Skipped):
            self.skipped.append(loaded)
            return
        self.photos.append(loaded.record)
        self.points.append(loaded.points)
        density = HeadDensity(loaded.points, loaded.record.size, self.kernel)
        self.counts += [view.integrate(density).ravel() for view in loaded.record.views]
        for pixels, views in loaded.looks:
            height, width = pixels.shape[:2]
            queue = self.waiting[height, width]
            queue.append(_Waiting(pixels, len(self.features), views))
            self.features += [torch.empty(0)] * views
            if (len(queue) + 1) * height * width > BATCH_PIXELS:
                self._extract(queue)

    @torch.inference_mode()
    def _extract(self, queue: list[_Waiting]) -> None:
        looks = queue.copy()
        queue.clear()
        height, width = looks[0].pixels.shape[:2]
        # Where no look of the batch has further grids, as in validation, nothing but the patches' features is needed.
        eye = self.backbone if self.cells is None or all(look.views == 1 for look in looks) else self.cells
        with torch.autocast(self.device.type, self.precision, enabled=self.precision is not torch.float32):
            if height * width > LARGE_PIXELS:  # then it is alone in its queue
                maps = whole_features(self.backbone, looks[0].pixels.numpy(), look=eye)[None]
            else:
                pixels = torch.stack([look.pixels for look in looks])
                maps = eye(preprocess(pixels.to(self.device)))  # (looks, channels, r, c)
        for look, seen in zip(looks, maps):
            grids = [seen] if eye is self.backbone else pool_grids(seen)[: look.views]
            for number, features in enumerate(grids):
                self.features[look.place + number] = features.flatten(1).mT.to(self.dtype).cpu()

    def write(self, out: Path, number: int) -> Shard:
        """Put the shard on disk, whole."""
        for queue in self.waiting.values():
            if queue:
                self._extract(queue)
        empty = torch.empty(0, self.backbone.channels, dtype=self.dtype)
        features = torch.cat([empty, *self.features])
        if not bool(torch.isfinite(features).all()):
            raise LibraError(
                f"backbone {self.backbone.name!r} gives features that {self.dtype} cannot hold, among the photos "
                f"{self.photos[0].name} to {self.photos[-1].name}; store them with --dtype fp32, or mend the weights"
            )
        tensors = {
            "features": features,
            "counts": torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *self.counts])),
            "points": torch.from_numpy(np.concatenate(self.points)),
        }
        data = save(tensors)
        file = f"shard-{number:05d}.safetensors"
        write_whole(out / file, data)
        return Shard(file, digest(data).hexdigest(), len(data), tuple(self.photos), tuple(self.skipped))
