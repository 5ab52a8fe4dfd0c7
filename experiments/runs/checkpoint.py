"""Checkpoints: one safetensors file with the tensors, and the numbers that belong to them in its header.

One file, so that they cannot disagree; written whole or not at all, so that a kill at any moment leaves the last one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from libra_gym.errors import LibraError
from libra_gym.features.storage import write_whole

FORMAT = "libra_gym.checkpoint"
_GENERATOR = "torch.generator"


@dataclass
class Checkpoint:
    """The state of a run between two blocks."""

    numbers: dict[str, Any]
    """Plain JSON types."""
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the checkpoint and torch's global random state in place of the last one."""
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.tensors.items()}
        tensors[_GENERATOR] = torch.get_rng_state()
        for index in range(torch.cuda.device_count()):
            tensors[f"{_GENERATOR}.{index}"] = torch.cuda.get_rng_state(index)
        write_whole(path, save(tensors, metadata={FORMAT: json.dumps(self.numbers)}))

    @classmethod
    def load(cls, path: Path) -> Checkpoint | None:
        """Read the checkpoint, if there is one."""
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                header = (file.metadata() or {})[FORMAT]
                # Copies: Windows replaces no file that tensors are mapped from.
                tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118 (not a mapping)
        except (SafetensorError, OSError, KeyError) as error:
            raise LibraError(
                f"The checkpoint {str(path)!r} cannot be read ({error}); start the training anew."
            ) from None
        return cls(json.loads(header), tensors)

    def restore_generators(self) -> None:
        """Set torch's global random state to the one that was saved."""
        torch.set_rng_state(self.tensors[_GENERATOR])
        for index in range(torch.cuda.device_count()):
            if (state := self.tensors.get(f"{_GENERATOR}.{index}")) is not None:
                torch.cuda.set_rng_state(state, index)
