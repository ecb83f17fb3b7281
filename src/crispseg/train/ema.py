"""A moving average of the weights, which validates and is saved in place of the weights when it is on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class WeightAverage:
    """average = decay * average + (1 - decay) * weights, after every step. Buffers (BatchNorm's statistics are
    averages already) are copied. Early on the decay is smaller, so that the fresh weights are soon forgotten."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.average = [parameter.detach().clone() for parameter in model.parameters()]

    @torch.no_grad()
    def update(self, steps_done: int) -> None:
        decay = min(self.decay, (1 + steps_done) / (10 + steps_done))
        torch._foreach_lerp_(self.average, list(self.model.parameters()), 1.0 - decay)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the model has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for average, parameter in zip(self.average, self.model.parameters(), strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(kept)

    def state_dict(self) -> dict[str, list[Tensor]]:
        return {"average": self.average}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        for own, saved in zip(self.average, state["average"], strict=True):
            own.copy_(saved)
