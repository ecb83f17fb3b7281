"""How much memory this process uses and how much is free, in bytes, where the system tells (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")


def resident() -> int:
    return _from_kilobytes("/proc/self/status", "VmRSS:")


def peak() -> int:
    """The most that was resident since the start or the last `reset_peak`."""
    return _from_kilobytes("/proc/self/status", "VmHWM:")


def reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def free() -> int:
    """What can be taken without swapping or passing a limit; unlimited where the system does not say."""
    system = _from_kilobytes("/proc/meminfo", "MemAvailable:") or sys.maxsize
    return max(0, min(system, _free_in_group(), _free_of_address_space()))


def _free_in_group() -> int:
    """Below the limit that a container or a batch system has set (cgroup v2, then v1)."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
            allowed = int((_GROUP / limit).read_text())
            return allowed - int((_GROUP / used).read_text()) + _reclaimable()
    return sys.maxsize


def _reclaimable() -> int:
    """Pages of files count as used, but are given up first."""
    with contextlib.suppress(OSError, ValueError):
        for line in (_GROUP / "memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                return int(line.split()[1])
    return 0


def _free_of_address_space() -> int:
    """Below `ulimit -v`."""
    try:
        import resource
    except ImportError:  # Windows
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    used = _from_kilobytes("/proc/self/status", "VmSize:")
    return sys.maxsize if limit == resource.RLIM_INFINITY or not used else limit - used


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


def is_shortage(error: BaseException) -> bool:
    """Whether it says that there is not enough memory: torch has its own name for that on a GPU, and none on a CPU."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(words in str(error) for words in ("can't allocate memory", "can't start new thread"))
