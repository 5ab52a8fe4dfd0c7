"""Optimisers as tensors, for checkpoints that hold no pickle."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The slots of each parameter, as `INDEX.SLOT`; hyper-parameters are left to whoever builds the optimiser."""
    return {
        f"{index}.{name}": value
        for index, slots in optimizer.state_dict()["state"].items()
        for name, value in slots.items()
        if isinstance(value, Tensor)
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`, for an optimiser of the same parameters."""
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, _, slot = key.partition(".")
        slots.setdefault(int(index), {})[slot] = value
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
