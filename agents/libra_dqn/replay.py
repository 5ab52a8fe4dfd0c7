"""Replay by index.

A patch's features never change, and the task knows every reward and next state exactly. So a stored transition is the
patch's number, what lay on the pan and the action: eighteen bytes, where SB3's buffer keeps two observations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from libra_gym.errors import LibraError

_FORMAT = "libra_gym.replay"
PERMUTE_UP_TO = 2**16
"""Buffers up to this size are sampled without replacement; in larger ones a repetition within a batch is rare."""


class Transitions(NamedTuple):
    """Situations and the actions taken in them, one per row."""

    patch: Tensor
    """Which patch of the bank."""
    history: Tensor
    """(rows, max_steps) uint8: actions taken before, plus one; 0 is empty."""
    value: Tensor
    """What lay on the pan, in ticks."""
    step: Tensor
    """How many actions were taken before."""
    action: Tensor


class IndexReplay:
    """A ring of the last `capacity` transitions, on one device."""

    def __init__(self, capacity: int, max_steps: int, device: torch.device | str = "cpu") -> None:
        self.capacity = capacity
        self.size = 0
        self.position = 0
        self.rows = Transitions(
            patch=torch.zeros(capacity, dtype=torch.int32, device=device),
            history=torch.zeros(capacity, max_steps, dtype=torch.uint8, device=device),
            value=torch.zeros(capacity, dtype=torch.int32, device=device),
            step=torch.zeros(capacity, dtype=torch.uint8, device=device),
            action=torch.zeros(capacity, dtype=torch.uint8, device=device),
        )

    def __len__(self) -> int:
        return self.size

    @property
    def nbytes(self) -> int:
        """The memory that the ring takes."""
        return sum(column.numel() * column.element_size() for column in self.rows)

    def add(self, new: Transitions) -> None:
        """Store transitions; the oldest make room. Of more than fit, the last ones stay."""
        number = min(len(new.patch), self.capacity)
        places = (self.position + torch.arange(number, device=self.rows.patch.device)) % self.capacity
        for column, values in zip(self.rows, new):
            column[places] = values[-number:].to(column.dtype) if number else values.to(column.dtype)
        self.position = (self.position + number) % self.capacity
        self.size = min(self.size + number, self.capacity)

    def sample(self, number: int, generator: torch.Generator) -> Transitions:
        """Random transitions, with indices widened for look-ups."""
        device = self.rows.patch.device
        if self.size <= PERMUTE_UP_TO:
            index = torch.randperm(self.size, generator=generator, device=device)[:number]
        else:
            index = torch.randint(self.size, (number,), generator=generator, device=device)
        picked = Transitions(*(column[index] for column in self.rows))
        return Transitions(
            picked.patch.long(), picked.history, picked.value.long(), picked.step.long(), picked.action.long()
        )

    def state(self) -> dict[str, Tensor]:
        """What is stored, for a checkpoint."""
        return {name: column[: self.size] for name, column in self.rows._asdict().items()}

    def load_state(self, state: dict[str, Tensor], position: int) -> None:
        """The inverse of `state`."""
        self.size = len(state["patch"])
        self.position = position
        for name, column in self.rows._asdict().items():
            column[: self.size] = state[name]

    def dumps(self, origin: Mapping[str, Any]) -> bytes:
        """What is stored, as the bytes of a safetensors file; `origin` tells bank and task, in plain JSON types."""
        columns = {name: column.cpu().contiguous() for name, column in self.state().items()}
        return save(columns, {_FORMAT: json.dumps({"position": self.position, "origin": origin})})

    def loads(self, data: bytes, patches: int, origin: Mapping[str, Any], file: str) -> None:
        """The inverse of `dumps`, for a bank of so many patches; `file` is its name, for messages."""
        try:
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            numbers, columns = json.loads(header["__metadata__"][_FORMAT]), load(data)
        except (SafetensorError, ValueError, KeyError) as error:
            raise LibraError(f"{file!r} is no replay buffer that was saved on the scales ({error}).") from None
        for name, there in (numbers.get("origin") or {}).items():  # files of earlier versions have none
            if there != origin[name]:
                other = (
                    "another bank" if name == "bank" else f"a scale with the {name} {there} instead of {origin[name]}"
                )
                raise LibraError(f"{file!r} is of {other}; it holds for none but its own.")
        size, steps = columns["history"].shape
        if size > self.capacity or steps != self.rows.history.shape[1]:
            raise LibraError(
                f"{file!r} holds {size:,} transitions of {steps} steps, but this agent's buffer has room for "
                f"{self.capacity:,} of {self.rows.history.shape[1]}."
            )
        if size and int(columns["patch"].max()) >= patches:
            raise LibraError(f"{file!r} is of another bank: it has a patch beyond the {patches:,} of this one.")
        # Where the ring is larger, new transitions follow behind these.
        self.load_state(columns, numbers["position"] if size == self.capacity else size)
