"""Work beside the main line: on a GPU, small kernels on a second stream while the main one goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Later(Generic[T]):
    """A result that is being computed aside. `get` makes the current stream wait for it."""

    def __init__(self, value: T, tensors: tuple[Tensor, ...], inputs: Any, event: Any) -> None:
        self._value, self._tensors, self._event = value, tensors, event
        self._inputs = inputs  # kept until the result is fetched: their memory must not be used again before

    def get(self) -> T:
        if self._event is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(self._event)
            if not torch.cuda.is_current_stream_capturing():
                for tensor in self._tensors:
                    tensor.record_stream(stream)
        self._inputs = None
        return self._value


class SideStream:
    """Starts work aside; on the CPU it is done at once. Every result must be fetched."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def __call__(self, function: Callable[[Tensor], T], x: Tensor) -> Later[T]:
        if not x.is_cuda:
            return Later(function(x), (), None, None)
        if x.device not in self._streams:
            self._streams[x.device] = torch.cuda.Stream(x.device)
        stream = self._streams[x.device]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            value = function(x)
            event = torch.cuda.Event()
            event.record(stream)
        tensors: Any = value if isinstance(value, tuple) else (value,)
        return Later(value, tensors, x, event)
