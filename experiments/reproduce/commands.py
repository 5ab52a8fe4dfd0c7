"""The command lines of jobs. What another command of `libra` takes is known here and nowhere else in this package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from experiments.reproduce.jobs import Call

Model: TypeAlias = Literal["best", "last"]
"""Which of the models that a run leaves."""


def features(
    dataset: str, root: Path, split: str, weights: str, out: Path, *, scale: float, precision: str | None
) -> Call:
    """Make a feature cache; the same command goes on with one."""
    where = ("--dataset", dataset, "--root", str(root), "--split", split)
    larger = () if scale == 1.0 else ("--scale", f"{scale:g}")
    return Call(("features", *where, "--weights", weights, *larger, *_precision(precision), "--out", str(out)))


def pretrain(
    method: str,
    dataset: str,
    root: Path,
    weights: str,
    out: Path,
    *,
    splits: tuple[str, str],
    epochs: int | None,
    precision: str | None,
) -> Call:
    """Fine-tune a backbone; it is written to `pretrained_file(out)`."""
    where = ("--method", method, "--dataset", dataset, "--root", str(root), "--weights", weights, "--out", str(out))
    return Call(("pretrain", *where, *_splits(splits), *_epochs(epochs), *_precision(precision)))


def pretrained_file(out: Path) -> Path:
    """The backbone that `libra pretrain` leaves, which `libra features --weights` takes."""
    return out / "best.safetensors"


def train(
    bank: Path,
    algo: str,
    preset: str,
    changes: Mapping[str, Any],
    out: Path,
    *,
    seed: int,
    splits: tuple[str, str],
    epochs: int | None,
    matmul: str | None,
) -> Call:
    """Train a head or an agent."""
    products = () if matmul is None else ("--matmul", matmul)
    what = ("--bank", str(bank), "--algo", algo, "--preset", preset, "--seed", str(seed))
    changed = tuple(text for key, value in changes.items() for text in ("--set", f"{key}={_yaml(value)}"))
    return Call(("train", *what, *_splits(splits), *changed, *_epochs(epochs), *products, "--out", str(out)))


def resume(command: str, run: Path) -> Call:
    """Go on with a `train` or `pretrain`."""
    return Call((command, "--resume", str(run)))


def evaluate(run: Path, bank: Path, split: str, figures: Path, model: Model = "best") -> Call:
    """Judge the best or the last model of a run."""
    judged = run if model == "best" else run / "last.safetensors"
    return Call(("evaluate", str(judged), "--bank", str(bank), "--split", split, "--json", str(figures)))


def speed(weights: str, figures: Path) -> Call:
    """Measure how long a photo takes."""
    return Call(("--weights", weights, "--json", str(figures)), module="experiments.reproduce.speed")


def _splits(splits: tuple[str, str]) -> tuple[str, ...]:
    """The splits to learn from and to choose by, where they are not the usual ones."""
    return () if splits == ("train", "validation") else ("--split", splits[0], "--validation", splits[1])


def _epochs(epochs: int | None) -> tuple[str, ...]:
    return () if epochs is None else ("--epochs", str(epochs))


def _precision(precision: str | None) -> tuple[str, ...]:
    return () if precision is None else ("--precision", precision)


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
