"""Bilinear resizing of a map band by band, with the values that resizing the whole map gives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from crispseg.exact.stream import Parts, Stream
from crispseg.ops.maps.resizing import resized

Size = tuple[int, int]
ReadRows = Callable[[int, int], Tensor]  # (top, bottom) -> (1, rows, W, C)


class BandResize:
    """Rows of a map of `source` size resized to `target` size; pixel centres kept (align_corners false)."""

    def __init__(self, source: Size, target: Size, dtype: torch.dtype) -> None:
        self.target = target
        # torch computes positions in the precision of the map, in float32 at least; so do we, to get its weights
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        scale = torch.tensor(source[0], dtype=exact) / target[0]
        position = ((torch.arange(target[0], dtype=exact) + 0.5) * scale - 0.5).clamp(min=0)
        self.upper = position.long().clamp(max=source[0] - 1)
        self.lower = (self.upper + 1).clamp(max=source[0] - 1)
        self.weight = (position - self.upper).clamp(max=1).to(dtype)  # of the lower row

    def needs(self, top: int, bottom: int) -> tuple[int, int]:
        """The source rows that target rows top ... bottom - 1 are made of."""
        return int(self.upper[top]), int(self.lower[bottom - 1]) + 1

    def ready(self, end: int) -> int:
        """How many target rows can be made from the first `end` source rows."""
        return int(torch.searchsorted(self.lower, end))

    def rows(self, x: Tensor, first: int, top: int, bottom: int) -> Tensor:
        """Target rows top ... bottom - 1 from source rows (1, rows, W, C), the first of which is row `first`."""
        x = resized(x, (x.shape[1], self.target[1]))
        upper, lower = (index[top:bottom].to(x.device) - first for index in (self.upper, self.lower))
        weight = self.weight[top:bottom, None, None].to(x)
        return torch.lerp(x[:, upper], x[:, lower], weight)

    def pull(self, read: ReadRows, top: int, bottom: int) -> Tensor:
        """Target rows top ... bottom - 1 of a map whose rows `read` gives."""
        first, last = self.needs(top, bottom)
        return self.rows(read(first, last), first, top, bottom)

    def stream(self, rows: Stream) -> Stream:
        """The whole resized map, from a stream of the whole source."""
        window: Parts = ()
        first = end = done = 0
        for (x,) in rows:
            window = (torch.cat([*window, x], dim=1),)
            end += x.shape[1]
            ready = self.ready(end)
            if ready > done:
                result = self.rows(window[0], first, done, ready)
                done = ready
                keep = min(int(self.upper[done]), end) if done < self.target[0] else end
                window, first = (window[0][:, keep - first :].clone(),), keep
                yield (result,)
