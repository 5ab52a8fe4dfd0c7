"""Banks by name: those that are registered, files, and feature directories."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

from libra_gym.bank import FeatureBank
from libra_gym.errors import LibraError

Loader: TypeAlias = Callable[[], FeatureBank]
_NAMED: dict[str, str | Loader] = {"demo": "libra_gym.banks:_load_demo"}


def register_bank(name: str, loader: str | Loader) -> None:
    """Make a bank known by name, as a function that loads it or as the function's `module:name`.

    `gym.make(..., bank=name)` then finds it, in other processes too if they run the same registration when they start.
    """
    _NAMED[name] = loader
    _open_bank.cache_clear()


def bank_names() -> tuple[str, ...]:
    """The banks that are known by name."""
    return tuple(sorted(_NAMED))


def load_bank(name: str, split: str | None = None) -> FeatureBank:
    """Open a bank by its name, its file (`.safetensors`) or its feature directory.

    The result is kept, so that many environments on one bank share its memory; a file that was written anew is read
    anew.
    """
    return _open_bank(name, split, None if name in _NAMED else _version(Path(name)))


def _version(path: Path) -> tuple[str, int, int] | None:
    """Tells a bank's file or directory from others, and from what it was before it was written anew."""
    from libra_gym.features.manifest import MANIFEST

    try:
        about = (path / MANIFEST if path.is_dir() else path).stat()
    except OSError:
        return None
    return str(path.resolve()), about.st_mtime_ns, about.st_size


@lru_cache(maxsize=8)
def _open_bank(name: str, split: str | None, version: tuple[str, int, int] | None) -> FeatureBank:
    if split is not None:
        return _open_bank(name, None, version).split(split)
    if name in _NAMED:
        loader = _NAMED[name]
        if isinstance(loader, str):
            module, _, function = loader.partition(":")
            loader = getattr(import_module(module), function)
        return loader()
    path = Path(name)
    if path.is_dir():
        from libra_gym.features import open_features

        return open_features(path)
    if path.is_file():
        return FeatureBank.load(path)
    known = ", ".join(bank_names())
    raise LibraError(f"There is no bank {name!r}: it is neither a file, nor a feature directory, nor one of: {known}.")


def _load_demo() -> FeatureBank:
    """The embedded synthetic bank; `experiments/make_demo_bank.py` makes it."""
    return FeatureBank.load(Path(__file__).parent / "assets" / "demo.safetensors")
