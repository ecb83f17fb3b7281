"""Processes that run cases, so that a case which crashes or hangs costs one process and is known by its number."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from campaigns.fuzz.cases import Bench, Outcome, limit_memory

_GRACE = 600  # seconds by the clock, for code that no alarm reaches
_START = 300  # seconds; there is much to import


class Worker:
    def __init__(self, root: Path, seed: int, chosen: list[str]) -> None:
        context = multiprocessing.get_context("spawn")  # torch and GDAL do not like to be forked
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, root, seed, chosen), daemon=True)
        self.process.start()
        theirs.close()
        self.numbers: list[int] = []
        self.heard, self.ready = time.monotonic() + _START, False

    def give(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.pipe.send(numbers)

    def collect(self, waiting: list[int]) -> Iterator[Outcome]:
        """What it has done; if it is gone or silent, what it was at, and the rest of its cases go back."""
        gone = False
        try:
            while self.pipe.poll():
                outcome = self.pipe.recv()
                self.ready = True
                self.numbers.remove(outcome.number)
                self.heard = time.monotonic()
                yield outcome
        except (EOFError, OSError):
            gone = True
        silent = self.numbers and time.monotonic() > self.heard + _GRACE
        if gone and not self.ready:
            raise SystemExit("a worker died before its first case; see what it said above")
        if self.numbers and (gone or silent):
            self.process.kill()
            self.process.join()
            at, *others = self.numbers
            self.numbers = []
            waiting.extend(others[::-1])
            why = f"no answer for {_GRACE} s" if silent else f"the process died ({self.process.exitcode})"
            yield Outcome(at, "?", "?", "?", "fault", said=why)


def _serve(pipe: Connection, root: Path, seed: int, chosen: list[str]) -> None:
    bench = Bench(root, seed, chosen)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    limit_memory()
    with contextlib.suppress(EOFError, OSError):
        while True:
            for number in pipe.recv():
                pipe.send(bench.run(number))
