"""What every pass of a run shares: the plan, the maps, the device and the progress."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from crispseg.exact.plan import StreamPlan
from crispseg.exact.store import RowMap, Storage, stream_map
from crispseg.exact.stream import Stream

Progress = Callable[[float], None]


class Context:
    def __init__(self, plan: StreamPlan, storage: Storage, like: Tensor, progress: Progress | None) -> None:
        self.plan, self.storage = plan, storage
        self.like = like  # a parameter of the model: bands are computed on its device and in its precision
        self._progress, self._macs = progress, 0.0

    def open(self, name: str) -> RowMap:
        return self.storage.open(self.plan.maps[name])

    def close(self, name: str) -> None:
        self.storage.close(name)

    def stream(self, name: str, pass_name: str, stride: int = 1) -> Stream:
        """A map in the bands of a pass that makes one row of every `stride` rows."""
        return stream_map(self.storage.maps[name], stride * self.plan.bands[pass_name], self.like)

    def read(self, name: str, top: int, bottom: int) -> Tensor:
        return self.storage.maps[name].read(top, bottom).to(self.like)

    def fill(self, name: str, rows: Stream, pass_name: str) -> None:
        """Write a stream to a map, over what it held."""
        top = 0
        for (x,) in rows:
            self.storage.maps[name].write(top, x)
            top += x.shape[1]
            self.count(pass_name, x.shape[1])

    def count(self, pass_name: str, rows: int) -> None:
        """Report that a pass is done with so many more rows of its map."""
        done = self.plan.passes[pass_name]
        self._macs += done.macs * done.size[1] * rows
        if self._progress is not None:
            self._progress(min(1.0, self._macs / self.plan.macs))
