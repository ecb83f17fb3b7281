"""How OpenMP's threads share a machine with other programs.

Unless told otherwise they spin while they wait for each other. Beside another busy program the one that is waited for
does not get a core, the others burn theirs, and a step takes ten times as long. The policy is read once, when torch
loads OpenMP, so it is set when crispseg is imported, unless the user has set one or torch is there already.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


def wait_without_spinning() -> None:
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


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
