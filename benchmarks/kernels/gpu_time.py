"""How long a piece of work takes on a GPU: many calls in one CUDA graph, so that launching them costs nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

CALLS = 20  # in a graph
REPLAYS = 10  # that are timed, after one that is not

Call = Callable[[], Any]


def record(call: Call) -> torch.cuda.CUDAGraph:
    """CALLS of it, one after the other."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # libraries and kernels are set up outside of the recording
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    return graph


def in_turn(graphs: Mapping[str, torch.cuda.CUDAGraph]) -> dict[str, float]:
    """Microseconds of one call of each: the median of replays that take turns."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(REPLAYS + 1):
        for name, graph in graphs.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(1e3 * begin.elapsed_time(end) / CALLS)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def microseconds(call: Call) -> float:
    """Of one call."""
    return in_turn({"": record(call)})[""]
