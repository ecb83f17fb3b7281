"""Averages of the loss terms between two records, kept on the device so that no step waits for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from crispseg.train.distributed import Processes
from crispseg.train.log import MetricsLog
from crispseg.train.progress import Progress


class Meter:
    """Sums what steps say; `record` averages it over steps and processes, and writes and shows it."""

    def __init__(self, processes: Processes, log: MetricsLog | None, progress: Progress, images_per_step: int) -> None:
        self.processes, self.log, self.progress = processes, log, progress
        self.images_per_step = images_per_step
        self._sums: dict[str, Tensor] = {}
        self._steps = 0
        self._since = time.monotonic()  # moved on by the time that was not spent on steps

    def add(self, said: dict[str, Tensor]) -> None:
        for name, value in said.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._steps += 1

    def record(self, step: int, facts: dict[str, float]) -> None:
        """Write the averages since the last record, with `facts`, as those after `step` steps."""
        total = self.processes.sum_(torch.stack(list(self._sums.values())))
        values = (total / (self._steps * self.processes.count)).tolist()  # the one wait for the device
        means = {f"train/{name}": value for name, value in zip(self._sums, values, strict=True)}
        speed = self._steps * self.images_per_step / max(time.monotonic() - self._since, 1e-9)
        self.write(step, {**means, **facts, "images_per_second": round(speed, 2)})
        self.progress.update(step, means["train/loss"], speed)
        self._sums, self._steps, self._since = {}, 0, time.monotonic()

    def write(self, step: int, values: dict[str, float | None]) -> None:
        if self.log is not None:
            self.log.add(step, values)

    def state_dict(self) -> dict[str, Any]:
        """The sums over all processes so far, so that a resumed run writes the same averages."""
        sums = {name: float(self.processes.sum_(value.clone())) for name, value in self._sums.items()}
        return {"sums": sums, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        here = 1.0 if self.processes.first else 0.0
        device = self.processes.device
        self._sums = {name: torch.tensor(value * here, device=device) for name, value in state["sums"].items()}
        self._steps = state["steps"]

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """What happens in the block does not count as training time."""
        began = time.monotonic()
        yield
        self._since += time.monotonic() - began
