"""Work beside the main line: on a GPU, small kernels on a second stream while the main one goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]


class SideStream:
    """Starts work aside; on the CPU it is done at once. What a call returns fetches the result, and every result must
    be fetched."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def __call__(self, function: Callable[[Tensor], Tensors], x: Tensor) -> Callable[[], Tensors]:
        if not x.is_cuda:
            result = function(x)
            return lambda: result
        if x.device not in self._streams:
            self._streams[x.device] = torch.cuda.Stream(x.device)
        stream = self._streams[x.device]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = function(x)
            event = torch.cuda.Event()
            event.record(stream)

        def fetch(_input: Tensor = x) -> Tensors:  # which is kept until then: its memory must not be used again before
            current = torch.cuda.current_stream()
            current.wait_event(event)
            if not torch.cuda.is_current_stream_capturing():
                for tensor in result:
                    tensor.record_stream(current)
            return result

        return fetch
