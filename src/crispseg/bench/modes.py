"""The ways to run a model. Every model is run in each of them by the same code.

eager      as written
graph      eager, recorded once into a CUDA graph and replayed
compiled   torch.compile for the one shape; on CUDA then recorded into a graph as well
fused      model.fused(); on CUDA then recorded into a graph as well
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from crispseg.fused import graphs

Tensors = graphs.Tensors
Function = graphs.Function
Make = Callable[[bool], Function]  # make(compiled) -> what is to be run


class Runner(Protocol):
    """Something ready to run: an input is put in place first, outside of what is timed."""

    peak_bytes: int | None  # beyond weights, input included; None where it cannot be measured

    def place(self, inputs: Tensors) -> None: ...

    def run(self) -> Tensors: ...


class Plain:
    """Calls the function, on the CPU or a GPU."""

    def __init__(self, function: Function, example: Tensors) -> None:
        self.function, self.inputs = function, example
        self.run()  # sets up libraries, which keep memory that is not the model's
        measured = _with_peak if example[0].is_cuda else _with_peak_on_cpu
        self.peak_bytes: int | None = measured(self.run, example)[1]

    def place(self, inputs: Tensors) -> None:
        self.inputs = inputs

    def run(self) -> Tensors:
        return self.function(*self.inputs)


class Replayed:
    """A recorded CUDA graph and the memory that recording it took."""

    def __init__(self, recording: graphs.Recording, peak_bytes: int) -> None:
        self.place, self.run = recording.place, recording.run
        self.peak_bytes: int | None = peak_bytes


class Recorder(graphs.Recorder):
    """Records graphs and measures their memory."""

    peak_bytes = 0
    _kept: Any = None  # a graph, as torch has a little memory for random numbers while there is any: not a model's

    def replayed(self, function: Function, example: Tensors) -> Replayed:
        recording = self.record(function, example)
        return Replayed(recording, self.peak_bytes)

    def capture(self, graph: Any, function: Function, inputs: Tensors) -> Tensors:
        if self._kept is None:
            self._kept = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._kept, stream=self.stream):
                torch.zeros_like(inputs[0][:1])
        outputs, self.peak_bytes = _with_peak(lambda: super(Recorder, self).capture(graph, function, inputs), inputs)
        return outputs


def _with_peak(run: Callable[[], Tensors], inputs: Tensors) -> tuple[Tensors, int]:
    """What `run` gives, and the most memory it and its inputs took."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    outputs = run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return outputs, peak + sum(x.nbytes for x in inputs)


def _with_peak_on_cpu(run: Callable[[], Tensors], inputs: Tensors) -> tuple[Tensors, int]:
    """The same from what the profiler saw torch's allocator give and take."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # 5, its USDT lines, are printed at every start and stop otherwise
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        outputs = run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]")
    taken = itertools.accumulate((change for _, change in changes), initial=0)
    return outputs, max(taken) + sum(x.nbytes for x in inputs)


def _eager(make: Make, example: Tensors, recorder: Recorder) -> Runner:
    return Plain(make(False), example)


def _graph(make: Make, example: Tensors, recorder: Recorder) -> Runner:
    return recorder.replayed(make(False), example)


def _compiled(make: Make, example: Tensors, recorder: Recorder) -> Runner:
    return _recorded_on_cuda(make(True), example, recorder)


def _fused(make: Make, example: Tensors, recorder: Recorder) -> Runner:
    return _recorded_on_cuda(make(False), example, recorder)


def _recorded_on_cuda(function: Function, example: Tensors, recorder: Recorder) -> Runner:
    return recorder.replayed(function, example) if example[0].is_cuda else Plain(function, example)


Mode = Callable[[Make, Tensors, Recorder], Runner]
MODES: dict[str, Mode] = {"eager": _eager, "graph": _graph, "compiled": _compiled, "fused": _fused}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile with its default settings, for the shapes it is first called with."""
    return torch.compile(function, dynamic=False)
