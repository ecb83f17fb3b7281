"""TensorBoard's event files, in the run's folder: `tensorboard --logdir runs`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crispseg.train.track import Tracker


class TensorBoard(Tracker):
    _writer: Any = None

    def begin(self, run: Path, config: Mapping[str, Any], steps_done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "events"), purge_step=steps_done + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def make() -> Tracker:
    return TensorBoard()
