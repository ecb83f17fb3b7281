"""Keeping an eye on a run: a loss that is not a number, and somebody asking it to stop."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor

from crispseg.errors import UserError
from crispseg.train.distributed import Processes

_NEVER = 1 << 62

T = TypeVar("T")


class FiniteWatch:
    """Notes on the device at which step the loss first stopped being a number, without waiting for the device;
    `verify` asks, and raises with the files of that step's batch. Nothing may be saved before it was asked."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self._first_bad = torch.full((), _NEVER, dtype=torch.int64, device=processes.device)
        self._files: dict[int, list[str]] = {}

    def note(self, step: int, values: Tensor, files: Sequence[str]) -> None:
        """`values` are what must be finite after `step` steps: the loss and, where it is safe, the gradient's norm."""
        self._files[step] = list(files)
        bad = torch.where(torch.isfinite(values).all(), _NEVER, step)
        self._first_bad = torch.minimum(self._first_bad, bad)

    def verify(self) -> None:
        """Raise in every process if any had a bad step; forget the good ones."""
        own = int(self._first_bad.item())
        if self.processes.any(own != _NEVER):
            found = [bad for bad in self.processes.gather((own, self._files.get(own, []))) if bad[0] != _NEVER]
            step = min(bad[0] for bad in found)
            files = sorted({file for bad in found if bad[0] == step for file in bad[1]})
            raise UserError(
                f"the loss or its gradient is not a finite number at step {step}, in the batch of {', '.join(files)}; "
                "nothing was saved since: look at these files, or lower optimizer.lr, and continue with --resume"
            )
        self._files.clear()


@contextlib.contextmanager
def without_signals(*numbers: signal.Signals) -> Iterator[None]:
    """Hold these signals back in the block, and for good in processes that are started in it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def shielding_workers(batches: Iterator[T]) -> Iterator[T]:
    """These batches. A Ctrl-C or a batch system's SIGTERM goes to every process; the workers, which start with the
    first batch, must live until the step is done."""
    with without_signals(signal.SIGTERM, signal.SIGINT):
        first = list(itertools.islice(batches, 1))
    yield from first
    yield from batches


class StopRequest:
    """SIGTERM and Ctrl-C raise a flag that is looked at between steps; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.signal = 0

    def __bool__(self) -> bool:
        return self.signal != 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[StopRequest]:
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._receive) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> Any:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        print("stopping after this step ...", file=sys.stderr, flush=True)
