"""How much memory this process uses and how much is free, in bytes, where the system tells (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path


def resident() -> int:
    return _from_kilobytes("/proc/self/status", "VmRSS:")


def peak() -> int:
    """The most that was resident since the start or the last `reset_peak`."""
    return _from_kilobytes("/proc/self/status", "VmHWM:")


def reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def free() -> int:
    """What can be taken without swapping; unlimited where the system does not say."""
    return _from_kilobytes("/proc/meminfo", "MemAvailable:") or sys.maxsize


def give_back() -> None:
    """Let the allocator return what it holds free in pieces (glibc); a good moment is between two stages."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _from_kilobytes(path: str, key: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    return 0
