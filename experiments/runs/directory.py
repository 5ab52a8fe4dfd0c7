"""The directory of a run: what is in it, and how its files come to be whole."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from subprocess import list2cmdline
from typing import Any, Protocol

from libra_gym.errors import LibraError
from libra_gym.features.storage import LOCK, locked, remove_leftovers, write_whole

PACKAGES = ("libra-gym", "torch", "numpy", "gymnasium", "stable-baselines3", "sb3-contrib", "safetensors")
_PARTIAL = ".partial-"


class Configuration(Protocol):
    """All settings of a run."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""


class RunDirectory:
    """Where the files of a run are."""

    def __init__(self, path: str | Path, command: str = "train") -> None:
        self.path = Path(path)
        self.command = command

    @property
    def config_path(self) -> Path:
        """All settings."""
        return self.path / "config.json"

    @property
    def progress_path(self) -> Path:
        """One row per epoch."""
        return self.path / "progress.csv"

    @property
    def tensorboard_path(self) -> Path:
        """Event files."""
        return self.path / "tensorboard"

    @property
    def checkpoint_path(self) -> Path:
        """What a run goes on from."""
        return self.path / "checkpoint" / "state.safetensors"

    def model_path(self, which: str, suffix: str = ".safetensors") -> Path:
        """The `best` or the `last` model."""
        return self.path / f"{which}{suffix}"

    @property
    def resume_command(self) -> str:
        """What to type to go on."""
        path = str(self.path)
        return f"libra {self.command} --resume {list2cmdline([path]) if os.name == 'nt' else shlex.quote(path)}"

    @contextmanager
    def held(self) -> Iterator[None]:
        """For this process alone."""
        with locked(self.path):
            yield

    def check_free(self) -> None:
        """Refuse a directory in which something is."""
        if self.config_path.exists():
            raise LibraError(
                f"{str(self.path)!r} holds a run already; go on with `{self.resume_command}`, or give another --out."
            )
        if self.path.exists() and (not self.path.is_dir() or any(entry.name != LOCK for entry in self.path.iterdir())):
            raise LibraError(f"{str(self.path)!r} is not an empty directory; give another --out.")

    def begin(self, config: Configuration, command: Sequence[str]) -> None:
        """Write down what will be run and with what; also when a run goes on."""
        self.checkpoint_path.parent.mkdir(parents=True, exist_ok=True)
        for leftover in self.path.glob(f"{_PARTIAL}*"):
            leftover.unlink()
        for directory in (self.path, self.checkpoint_path.parent):
            remove_leftovers(directory)
        write_whole(self.path / "versions.json", _json(versions()))
        with (self.path / "command.txt").open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(shlex.join(command) + "\n")
        write_whole(self.config_path, _json(config.to_dict()))

    @contextmanager
    def undone_if_unlearnt(self, *, new: bool) -> Iterator[None]:
        """Remove a new run that fails before it learns anything, so that its command may be tried again."""
        try:
            yield
        except Exception:
            if new and not self.checkpoint_path.exists() and not any(self.path.glob("last.*")):
                shutil.rmtree(self.path, ignore_errors=True)
            raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; it takes the place of `path` when all is written and on disk."""
    partial = path.with_name(_PARTIAL + path.name)
    try:
        yield partial
        with partial.open("r+b") as file:  # Windows flushes only what may be written
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Of Python, the platform and the packages that decide results."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found


def command_line() -> list[str]:
    """The command as it was typed."""
    return ["libra", *sys.argv[1:]]


def _json(content: object) -> bytes:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")  # names of files need not be text
