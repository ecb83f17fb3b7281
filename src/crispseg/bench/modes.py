"""The ways to run a model. Every model is run in each of them by the same code.

eager      as written
graph      eager, recorded once into a CUDA graph and replayed
compiled   torch.compile for the one shape; on CUDA then recorded into a graph as well
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
Function = Callable[..., Tensors]
Make = Callable[[bool], Function]  # make(compiled) -> what is to be run

_CAPTURE_WARMUP = 3  # runs before a capture, so that libraries and caches are set up outside of it


class Runner(Protocol):
    """Something ready to run: an input is put in place first, outside of what is timed."""

    peak_bytes: int | None  # beyond weights, input included; None where it cannot be measured

    def place(self, inputs: Tensors) -> None: ...

    def run(self) -> Tensors: ...


class Plain:
    """Calls the function, on the CPU or a GPU."""

    def __init__(self, function: Function, example: Tensors) -> None:
        self.function, self.inputs = function, example
        self.peak_bytes: int | None = None
        if example[0].is_cuda:
            self.run()  # sets up libraries, which keep memory that is not the model's
            _, self.peak_bytes = _with_peak(self.run, example)

    def place(self, inputs: Tensors) -> None:
        self.inputs = inputs

    def run(self) -> Tensors:
        return self.function(*self.inputs)


class Replayed:
    """A recorded CUDA graph; it reads its inputs from, and leaves its outputs in, the same memory each time."""

    def __init__(self, graph: Any, inputs: Tensors, outputs: Tensors, peak_bytes: int) -> None:
        self.graph, self.inputs, self.outputs = graph, inputs, outputs
        self.peak_bytes: int | None = peak_bytes

    def place(self, inputs: Tensors) -> None:
        for ours, given in zip(self.inputs, inputs, strict=True):
            ours.copy_(given)

    def run(self) -> Tensors:
        self.graph.replay()
        return self.outputs


class Recorder:
    """Records CUDA graphs. They share one pool of memory, since they are replayed one at a time."""

    def __init__(self) -> None:
        self.stream: Any = None
        self.pool: Any = None

    def record(self, function: Function, example: Tensors) -> Replayed:
        inputs = tuple(x.detach().clone() for x in example)
        self.stream = self.stream or torch.cuda.Stream(inputs[0].device)
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        # Warmed up on the stream it is captured on: libraries keep their workspaces per stream. The context restores
        # the current stream, which a failing capture would leave changed.
        with torch.cuda.stream(self.stream):
            for _ in range(_CAPTURE_WARMUP):
                function(*inputs)
            _rehearse(function, inputs)
            outputs, peak = _with_peak(lambda: self._capture(graph, function, inputs), inputs)
        torch.cuda.current_stream().wait_stream(self.stream)
        return Replayed(graph, inputs, outputs, peak)

    def _capture(self, graph: Any, function: Function, inputs: Tensors) -> Tensors:
        cause: Exception | None = None
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                try:
                    return function(*inputs)
                except Exception as error:
                    cause = error  # ending the capture raises too, and would hide it
                    raise
        except Exception as error:
            self.pool = None  # its state is unknown now; the next graph starts another
            raise cause or error from None


def _rehearse(function: Function, inputs: Tensors) -> None:
    """Raise if the function makes the CPU wait for the GPU, which no graph can record.

    Found out only during a capture, it leaves torch 2.11 unable to record anything else in this process.
    """
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        function(*inputs)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _with_peak(run: Callable[[], Tensors], inputs: Tensors) -> tuple[Tensors, int]:
    """What `run` gives, and the most memory it and its inputs took."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    outputs = run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return outputs, peak + sum(x.nbytes for x in inputs)


def _eager(make: Make, example: Tensors, recorder: Recorder) -> Runner:
    return Plain(make(False), example)


def _graph(make: Make, example: Tensors, recorder: Recorder) -> Runner:
    return recorder.record(make(False), example)


def _compiled(make: Make, example: Tensors, recorder: Recorder) -> Runner:
    function = make(True)
    return recorder.record(function, example) if example[0].is_cuda else Plain(function, example)


Mode = Callable[[Make, Tensors, Recorder], Runner]
MODES: dict[str, Mode] = {"eager": _eager, "graph": _graph, "compiled": _compiled}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile with its default settings, for the shapes it is first called with."""
    return torch.compile(function, dynamic=False)
