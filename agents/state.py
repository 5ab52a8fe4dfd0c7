"""Optimisers as tensors, for checkpoints that hold no pickle."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from libra_gym.errors import LibraError


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The slots of each parameter, as `INDEX.SLOT`; hyper-parameters are left to whoever builds the optimiser.

    A slot that is a plain number, such as a count of steps, has its kind behind its name: `INDEX.SLOT:int`.
    """
    tensors: dict[str, Tensor] = {}
    for index, slots in optimizer.state_dict()["state"].items():
        for name, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            elif isinstance(value, int | float):
                tensors[f"{index}.{name}:{'int' if isinstance(value, int) else 'float'}"] = torch.tensor(
                    value, dtype=torch.int64 if isinstance(value, int) else torch.float64
                )
            elif value is not None:
                raise LibraError(
                    f"The optimiser {type(optimizer).__name__} keeps {name!r} as {type(value).__name__}, which a "
                    "checkpoint cannot hold; take another optimiser."
                )
    return tensors


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`, for an optimiser of the same parameters."""
    slots: dict[int, dict[str, Tensor | float]] = {}
    for key, value in tensors.items():
        index, _, slot = key.partition(".")
        name, _, kind = slot.partition(":")
        slots.setdefault(int(index), {})[name] = value.item() if kind else value
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
