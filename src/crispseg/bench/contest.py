"""Prepares entries, checks their outputs, and takes their times in turn, so that drift hits all alike."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from crispseg.bench.check import contrast, relative_error
from crispseg.bench.modes import MODES, Make, Recorder, Runner, Tensors
from crispseg.bench.result import Cell, Latency
from crispseg.bench.settings import Settings

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Entry:
    """What is to be timed, and how it is checked."""

    cell: Cell  # what is known beforehand
    make: Make
    inputs: Callable[[], Sequence[Tensors]]
    truths: Callable[[], Sequence[Tensors]]  # the right outputs, one per input
    facts: Callable[[], dict[str, Any]] = dict  # more fields of the cell
    error: Callable[[Tensors, Tensors], float] = relative_error  # of an output, given the truth
    refused: str = ""  # why no number may be given at all


@dataclasses.dataclass
class Racer:
    """An entry that gave right answers and is ready to be timed, or one that did not and is not."""

    cell: Cell
    inputs: Sequence[Tensors] = ()
    runner: Runner | None = None
    milliseconds: list[float] = dataclasses.field(default_factory=list)

    def drop(self, **why: Any) -> None:
        self.cell, self.runner = dataclasses.replace(self.cell, **why), None


def contest(entries: Iterable[Entry], settings: Settings, say: Say) -> list[Cell]:
    """Each entry's cell, with its time if its outputs are right. They are prepared one by one and timed together."""
    recorder = Recorder()
    with torch.no_grad():
        racers = []
        for entry in entries:
            say(f"preparing {entry.cell.title}")
            racers.append(prepare(entry, recorder))
            _tidy(settings)
        say(f"timing {sum(racer.runner is not None for racer in racers)} of {len(racers)}")
        race(racers, settings.warmup, settings.repeats, run_once if not settings.on_cuda else run_twice)
    cells = [_timed(racer) for racer in racers]
    del racers, recorder
    if "compiled" in settings.modes:
        torch.compiler.reset()
    _tidy(settings)
    return cells


def prepare(entry: Entry, recorder: Recorder) -> Racer:
    """Build the runner and compare its output with the truth, for every input."""
    racer = Racer(entry.cell)
    start = time.perf_counter()
    try:
        racer.cell = dataclasses.replace(racer.cell, **entry.facts())
        if entry.refused:
            racer.drop(status="wrong", reason=entry.refused)
            return racer
        racer.inputs, truths = entry.inputs(), entry.truths()
        racer.runner = MODES[entry.cell.mode](entry.make, racer.inputs[0], recorder)
        error = max(_errors(racer.runner, racer.inputs, truths, entry.error))
        racer.cell = dataclasses.replace(racer.cell, check_contrast=contrast(truths))
    except Exception as problem:  # whatever one model does wrong, the others go on
        racer.drop(**what_happened(problem))
        return racer
    _judge(racer, error)
    racer.cell = dataclasses.replace(racer.cell, setup_seconds=time.perf_counter() - start)
    return racer


def _judge(racer: Racer, error: float) -> None:
    """Keep the error, and the measured memory if it is small enough; otherwise the racer is out."""
    finite = error < float("inf")
    racer.cell = dataclasses.replace(racer.cell, check_error=error if finite else None)
    if not error <= racer.cell.check_bound:
        amount = f"relative error {error:.1e}" if finite else "another shape, or values that are not finite"
        reason = f"{amount}; allowed is {racer.cell.check_bound:.0e}"
        racer.drop(status="wrong", reason=reason, peak_bytes=None, peak_source="")
    elif racer.runner is not None and racer.runner.peak_bytes is not None:
        peak = racer.runner.peak_bytes
        racer.cell = dataclasses.replace(racer.cell, peak_bytes=peak, peak_source="allocator")


def race(racers: Sequence[Racer], warmup: int, repeats: int, clock: Callable[[Runner], float]) -> None:
    """Round after round, each racer runs once and then it is the next one's turn; the inputs change every round."""
    with _no_collection():
        for turn in range(warmup + repeats):
            for racer in racers:
                if racer.runner is None:
                    continue
                try:
                    racer.runner.place(racer.inputs[turn % len(racer.inputs)])
                    took = clock(racer.runner)
                except Exception as problem:
                    racer.drop(**what_happened(problem))
                    continue
                if turn >= warmup:
                    racer.milliseconds.append(took)


def run_once(runner: Runner) -> float:
    """Milliseconds of one run on the CPU."""
    start = time.perf_counter()
    runner.run()
    return (time.perf_counter() - start) * 1e3


def run_twice(runner: Runner) -> float:
    """Milliseconds on the GPU between events before and after a run.

    It follows a run that is not counted, without a pause: the one before was another model's, and the GPU's cache and
    its queue should be as they are amid this model's work.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    runner.run()
    start.record()
    runner.run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def _errors(
    runner: Runner, inputs: Sequence[Tensors], truths: Sequence[Tensors], error: Callable[[Tensors, Tensors], float]
) -> Iterator[float]:
    for given, truth in zip(inputs, truths, strict=True):
        runner.place(given)
        yield error(runner.run(), truth)


def _timed(racer: Racer) -> Cell:
    if racer.runner is None:
        return racer.cell
    times = racer.milliseconds
    first, _, third = statistics.quantiles(times, method="inclusive") if len(times) > 1 else times * 3
    latency = Latency(statistics.median(times), third - first, len(times))
    return dataclasses.replace(racer.cell, latency_ms=latency)


def what_happened(problem: Exception) -> dict[str, str]:
    """Status and reason of a cell, from what was raised."""
    text = " ".join(str(problem).split())
    memory = isinstance(problem, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    said = lines[0] if lines else ""
    if said.endswith("raised:") and len(lines) > 1:  # torch.compile's first line only says which part raised
        said = lines[1]
    reason = said if memory else f"{type(problem).__name__}: {said}"
    return {"status": "out of memory" if memory else "failed", "reason": reason}


def _tidy(settings: Settings) -> None:
    gc.collect()
    if settings.on_cuda:
        with contextlib.suppress(RuntimeError):  # after a capture that failed, torch may refuse
            torch.cuda.empty_cache()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage collection amid a timing would be charged to whoever is running."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
