"""Recording what a function does on a GPU into CUDA graphs, and replaying it without the cost of launching it."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from crispseg.ops.compile_ahead import compile_ahead

Tensors = tuple[Tensor, ...]
Function = Callable[..., Tensors]

_CAPTURE_WARMUP = 3  # runs before a capture, so that libraries and caches are set up outside of it


class Recording:
    """A recorded CUDA graph; it reads its inputs from, and leaves its outputs in, the same memory each time.

    A graph knows addresses only. The function is kept for the tensors it holds: the graph reads its weights.
    """

    def __init__(self, graph: Any, function: Function, inputs: Tensors, outputs: Tensors) -> None:
        self.graph, self.function, self.inputs, self.outputs = graph, function, inputs, outputs

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

    def record(self, function: Function, example: Tensors) -> Recording:
        inputs = tuple(x.detach().clone() for x in example)
        self.stream = self.stream or torch.cuda.Stream(inputs[0].device)
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        # Warmed up on the stream it is captured on: libraries keep their workspaces per stream. The context restores
        # the current stream, which a failing capture would leave changed.
        with torch.cuda.stream(self.stream):
            compile_ahead(lambda: function(*inputs), inputs[0].device)
            for _ in range(_CAPTURE_WARMUP):
                function(*inputs)
            rehearse(function, inputs)
            outputs = self.capture(graph, function, inputs)
        torch.cuda.current_stream().wait_stream(self.stream)
        return Recording(graph, function, inputs, outputs)

    def capture(self, graph: Any, function: Function, inputs: Tensors) -> Tensors:
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


def rehearse(function: Function, inputs: Tensors) -> None:
    """Raise if the function cannot be recorded."""
    with no_waiting():
        function(*inputs)


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """Raise if the CPU is made to wait for the GPU, which no graph can record.

    Found out only during a capture, it leaves torch 2.11 unable to record anything else in this process.
    """
    before = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode("error")
    try:
        yield
    finally:
        _set_sync_debug_mode(before)


def _set_sync_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that this is a prototype, each time
        torch.cuda.set_sync_debug_mode(mode)


class GraphCache:
    """Calls a function of one CUDA tensor through a graph for each shape; the least recently used one goes first.

    What it returns belongs to the caller. A shape that cannot be recorded is computed by calling the function.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], shapes: int = 8, recorder: Recorder | None = None) -> None:
        self.function, self.shapes = function, shapes
        self.recorder = recorder or Recorder()
        self.recordings: OrderedDict[Any, Recording | None] = OrderedDict()  # None: cannot be recorded
        self._lock = threading.Lock()
        self._last: Any = None  # the stream of the latest replay, and the event at its end

    def __getstate__(self) -> dict[str, Any]:
        """Of copies and pickles: their function is another's, and they record anew."""
        return {"function": self.function, "shapes": self.shapes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, image: Tensor) -> Tensor:
        with self._lock, torch.cuda.device(image.device):
            recording = self._recording(image)
            if recording is None:
                return self.function(image)
            return self._replay(recording, image)

    def _recording(self, image: Tensor) -> Recording | None:
        key = (image.shape, image.stride(), image.dtype, image.device)
        if key not in self.recordings:
            if len(self.recordings) >= self.shapes:
                torch.cuda.synchronize()  # the graph that goes may still be running
                self.recordings.popitem(last=False)
            self.recordings[key] = self._record(image)
        self.recordings.move_to_end(key)
        return self.recordings[key]

    def _record(self, image: Tensor) -> Recording | None:
        try:
            # tensors made in inference mode could not be written to outside of it, by a later call
            with torch.inference_mode(False), torch.no_grad():
                return self.recorder.record(lambda x: (self.function(x),), (image,))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return None

    def _replay(self, recording: Recording, image: Tensor) -> Tensor:
        """The graphs share their memory, so a replay on another stream waits for the one before."""
        stream = torch.cuda.current_stream()
        if self._last is not None and self._last[0] != stream:
            stream.wait_event(self._last[1])
        recording.place((image,))
        (output,) = recording.run()
        output = output.clone()
        event = torch.cuda.Event()
        event.record(stream)
        self._last = (stream, event)
        return output
