"""What every accumulator shares: tensors that only add up, over images, objects and processes."""

from __future__ import annotations

from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from crispseg.errors import UserError


class Accumulator:
    """Named tensors of sums. A subclass fills `settings` (its constructor's arguments) and `sums`.

    `update` adds an image and returns what it added, as an accumulator of the same kind: one image's scores
    are the scores of that.
    """

    def __init__(self, settings: dict[str, Any], sums: dict[str, Tensor]) -> None:
        self.settings = settings
        self.sums = sums

    def empty(self) -> Self:
        """An accumulator with the same settings and nothing counted."""
        return type(self)(**self.settings)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.sums.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if {name: tensor.shape for name, tensor in state.items()} != {
            name: tensor.shape for name, tensor in self.sums.items()
        }:
            raise UserError(f"these sums do not belong to a {type(self).__name__} with {self.settings}")
        for name, tensor in state.items():
            self.sums[name].copy_(tensor)

    def to_dict(self) -> dict[str, Any]:
        """Settings and sums as plain numbers, for JSON; `from_dict` is the way back."""
        return {**self.settings, "sums": {name: tensor.tolist() for name, tensor in self.sums.items()}}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        settings = {name: value for name, value in values.items() if name != "sums"}
        new = cls(**settings)
        new.load_state_dict(
            {
                name: torch.tensor(value, dtype=new.sums[name].dtype).view_as(new.sums[name])
                for name, value in values["sums"].items()
            }
        )
        return new

    def __iadd__(self, other: Self) -> Self:
        if type(other) is not type(self) or other.settings != self.settings:
            raise UserError(
                f"cannot add a {type(other).__name__} with {getattr(other, 'settings', None)} "
                f"to a {type(self).__name__} with {self.settings}"
            )
        for name, tensor in other.sums.items():
            self.sums[name] += tensor
        return self

    def __add__(self, other: Self) -> Self:
        total = self.empty()
        total += self
        total += other
        return total

    def all_reduce_(self, group: dist.ProcessGroup | None = None) -> Self:
        """Add up over all processes, in place; nothing to do where torch.distributed is not in use."""
        if dist.is_available() and dist.is_initialized():
            # the sums live on the CPU; NCCL only carries tensors of the GPU
            device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
            for tensor in self.sums.values():
                moved = tensor.to(device)
                dist.all_reduce(moved, group=group)
                tensor.copy_(moved)
        return self

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{type(self).__name__}({arguments})"
