"""How OpenMP's threads share a machine with other programs.

Unless told otherwise they spin for milliseconds while they wait for each other. Beside another busy program the one
that is waited for does not get a core, the others burn theirs, and a step takes several times as long. If they sleep at
once, a step on a quiet machine takes a third longer: they wake too late for the next of thousands of short pieces. So
they sleep where others are at work when the program starts, and else spin for a short while (`benchmarks/load.py`).
The policy is read once, when torch loads OpenMP, so it is set when crispseg is imported, unless the user has set one or
torch is there already.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

_SPINS = 10_000  # of GNU's OpenMP, some tenth of a millisecond; other ones sleep at once
_SAMPLES = 3  # of what runs now: most programs run for a moment only
_PAUSE = 0.002  # seconds between them


def choose_waiting() -> None:
    if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ.update(OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT=str(spins(others_running())))


def spins(others: int) -> int:
    """While a thread waits for another one: none where a thread of ours would have to share its core."""
    return 0 if others + available_cores() > (os.cpu_count() or 1) else _SPINS


def others_running() -> int:
    """Threads of other programs that run, or wait for a core, all the time; nobody knows but on Linux."""
    try:
        return min(_running_now(pause=i > 0) for i in range(_SAMPLES)) - 1
    except (OSError, ValueError, IndexError):
        return 0


def _running_now(pause: bool) -> int:
    if pause:
        time.sleep(_PAUSE)
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].partition("/")[0])


def available_cores() -> int:
    """Those that this process may run on: a job scheduler or a container may have left it fewer than there are."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """For work made of many small operations, which several threads only slow down."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
