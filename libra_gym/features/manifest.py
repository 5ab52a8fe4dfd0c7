"""The manifest of a feature cache: what it was made from, and what is in each shard."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from libra_gym.counts import DEFAULT_KERNEL, KERNELS, Kernel, Size
from libra_gym.datasets.views import View
from libra_gym.errors import LibraError
from libra_gym.features.storage import write_whole

SCHEMA: Final = 1
MANIFEST: Final = "manifest.json"


@dataclass(frozen=True)
class Recipe:
    """All that decides the bytes of a cache, apart from the photos and dots themselves."""

    dataset: str
    split: str
    photos: tuple[str, ...]
    backbone: str
    weights: str
    """SHA-256 of the backbone's parameters."""
    preprocessing: Mapping[str, Any]
    kernel: Kernel
    crops: str
    mirror: bool
    dtype: str
    photos_per_shard: int
    scale: float = 1.0
    precision: str = "float32"
    """In what numbers the backbone computed."""
    grids: bool = False
    """Whether training photos are there on all four grids half a patch apart."""

    @property
    def shards(self) -> int:
        """How many shards the finished cache has."""
        return -(-len(self.photos) // self.photos_per_shard)


@dataclass(frozen=True)
class PhotoRecord:
    """A photo in a shard; its dots and the patches of its views lie there in the order of the records."""

    name: str
    split: str
    sha256: str
    size: Size
    dots: int
    views: tuple[View, ...]


@dataclass(frozen=True)
class Skipped:
    """A photo that was left out, and why."""

    name: str
    sha256: str
    """Empty if the file could not be read at all."""
    reason: str


@dataclass(frozen=True)
class Shard:
    """One file of the cache."""

    file: str
    sha256: str
    bytes: int
    photos: tuple[PhotoRecord, ...]
    skipped: tuple[Skipped, ...]

    @property
    def patches(self) -> int:
        """The number of feature vectors in the shard."""
        return sum(view.grid[0] * view.grid[1] for photo in self.photos for view in photo.views)


@dataclass(frozen=True)
class Manifest:
    """A recipe and the shards that are finished; with its own checksum in the file."""

    recipe: Recipe
    shards: tuple[Shard, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every photo has been looked at."""
        return len(self.shards) == self.recipe.shards

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The photos that were left out."""
        return tuple(photo for shard in self.shards for photo in shard.skipped)

    def save(self, directory: Path) -> None:
        """Write the manifest; equal manifests give equal bytes."""
        content = asdict(self)
        document = {"schema": SCHEMA, "checksum": _checksum(content), **content}
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        write_whole(directory / MANIFEST, text.encode("utf-8", "backslashreplace"))  # names of files need not be text

    @classmethod
    def load(cls, directory: Path) -> Manifest:
        """Read the manifest of a cache, and refuse one of another schema or with a changed byte."""
        path = directory / MANIFEST
        try:
            document = json.loads(path.read_bytes())
            schema, checksum = document.pop("schema"), document.pop("checksum")
        except OSError as error:
            raise LibraError(
                f"{directory} is no feature cache: its {MANIFEST} cannot be read ({error.strerror}); "
                "`libra features --help` tells how to make one"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LibraError(
                f"{path} is damaged; make the cache anew with the `libra features` command that made it and `--rebuild`"
            ) from error
        if schema != SCHEMA:
            raise LibraError(
                f"{directory} has schema {schema} and this version reads schema {SCHEMA}; make the cache anew with the "
                "`libra features` command that made it and `--rebuild`"
            )
        if checksum != _checksum(document):
            raise LibraError(
                f"{path} is not what was written; make the cache anew with the `libra features` command that "
                "made it and `--rebuild`"
            )
        recipe = document["recipe"]
        recipe |= {"photos": tuple(recipe["photos"]), "kernel": Kernel.from_dict(recipe["kernel"])}
        return cls(Recipe(**recipe), tuple(map(_shard, document["shards"])))


def remake(recipe: Recipe, directory: Path) -> str:
    """The command that makes a cache anew."""
    crops = (" --crops paper" if recipe.crops == "paper" else "") + (" --mirror" if recipe.mirror else "")
    crops += " --grids" if recipe.grids else ""
    crops += "" if recipe.crops == "paper" else f" --scale {recipe.scale:g}"  # the weights may say another one
    crops += " --precision bf16" if recipe.precision == "bfloat16" else ""
    crops += " --dtype fp32" if recipe.dtype == "float32" else ""
    kernel = next((name for name, kernel in KERNELS.items() if kernel == recipe.kernel), DEFAULT_KERNEL)
    crops += f" --kernel {kernel}" if kernel != DEFAULT_KERNEL else ""
    return (
        f"`libra features --dataset {recipe.dataset} --root DIR --split {recipe.split} --backbone {recipe.backbone} "
        f"--weights FILE{crops} --out {shlex.quote(str(directory))} --rebuild`"
    )


def check_same(old: Recipe, new: Recipe, directory: Path) -> None:
    """Refuse to go on with a cache that was made otherwise."""
    for field in fields(Recipe):
        before, now = getattr(old, field.name), getattr(new, field.name)
        if before == now:
            continue
        if field.name == "photos":
            changed = next(iter(set(before) ^ set(now)), "another order of the photos")
            difference = f"has {len(before)} photos and this run {len(now)} (the first difference: {changed})"
        else:
            difference = f"was made with {field.name} {_short(before)} and this run has {_short(now)}"
        raise LibraError(f"{directory} {difference}; give another --out, or make it anew with {remake(new, directory)}")


def _short(value: object) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 and " " not in text else text


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _shard(raw: dict[str, Any]) -> Shard:
    photos = tuple(
        PhotoRecord(**photo | {"size": tuple(photo["size"]), "views": tuple(View(**view) for view in photo["views"])})
        for photo in raw["photos"]
    )
    return Shard(**raw | {"photos": photos, "skipped": tuple(Skipped(**photo) for photo in raw["skipped"])})
