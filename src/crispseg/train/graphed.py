"""Forward, loss and backward of a batch as one CUDA graph: recorded once, then replayed without Python in between.

A step of a small network is some thousand short kernels, and launching them from Python takes longer than running
them. A replay reads its inputs from, and leaves losses and gradients in, the same memory each time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from crispseg.fused.graphs import no_waiting

Work = Callable[..., dict[str, Tensor]]  # tensors (images, labels, ...) -> losses; leaves gradients

_WARM_UP = 3  # runs before the recording, so that libraries and compilers are set up outside of it


class GraphedPass:
    """Callable like the work it records. The gradients it leaves are to be overwritten, never cleared to None."""

    def __init__(self, work: Work, model: nn.Module, example: tuple[Tensor, ...]) -> None:
        """Raises RuntimeError where the work cannot be recorded; the model is then as it was."""
        self.inputs = tuple(x.clone() for x in example)
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), buffers_kept(model):
            for run in range(_WARM_UP):
                with no_waiting() if run == _WARM_UP - 1 else contextlib.nullcontext():
                    work(*self.inputs)
                model.zero_grad(set_to_none=True)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self.graph, stream=stream):
            self.losses = work(*self.inputs)

    def __call__(self, *given: Tensor) -> dict[str, Tensor]:
        for own, new in zip(self.inputs, given, strict=True):
            own.copy_(new)
        self.graph.replay()
        return {name: value.clone() for name, value in self.losses.items()}


@contextlib.contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Running statistics, which the warm-up would move, are put back."""
    kept = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in zip(model.buffers(), kept, strict=True):
            buffer.copy_(value)
