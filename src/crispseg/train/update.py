"""A model with all that changes its weights, for every kind of training: the update, and its state."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from crispseg.errors import UserError
from crispseg.reading import reason
from crispseg.train.ema import WeightAverage
from crispseg.train.graphed import GraphedPass
from crispseg.train.optimizer import Lookahead, OptimizerConfig, build_optimizer, load_optimizer
from crispseg.train.schedule import ScheduleConfig, learning_rate

Model = TypeVar("Model", bound=nn.Module)


class Updated(Generic[Model]):
    """Optimiser, scaler of half-precision gradients, averages. What steps derive from this."""

    def __init__(
        self, model: Model, config: OptimizerConfig, device: torch.device, precision: str | None, ema: float
    ) -> None:
        self.model = model
        self.optimizer = build_optimizer(model, config, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self.average = WeightAverage(model, ema) if ema else None
        self.lookahead = (
            Lookahead(model.parameters(), config.lookahead, config.lookahead_alpha) if config.lookahead else None
        )
        self.limit = config.clip or float("inf")
        self.graphed: GraphedPass | None = None

    @property
    def lr(self) -> float:
        """The largest learning rate of the last step."""
        return max(group["lr"] for group in self.optimizer.param_groups)

    def set_rates(self, step: int, schedule: ScheduleConfig) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, group["peak"], schedule)

    def update(self, steps_done: int) -> Tensor:
        """Change the weights by the gradients that are there; the gradients' norm."""
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.limit)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.graphed is None:  # a graph writes its gradients over the last ones
            self.optimizer.zero_grad(set_to_none=True)
        if self.lookahead is not None:
            self.lookahead.step(steps_done)
        if self.average is not None:
            self.average.update(steps_done)
        return norm

    def final_weights(self) -> contextlib.AbstractContextManager[None]:
        """Within the block the model has the weights to judge and to keep: the average, when there is one."""
        return self.average.in_place() if self.average is not None else contextlib.nullcontext()

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": self.average.state_dict() if self.average is not None else None,
            "lookahead": self.lookahead.state_dict() if self.lookahead is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        try:
            self._load(state)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"the checkpoint does not fit the model of this run's config: {reason(error)}") from error

    def _load(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if self.lookahead is not None:
            self.lookahead.load_state_dict(state["lookahead"])
