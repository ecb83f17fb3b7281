"""What may happen to a process. All is chosen before the fork; `meet` prepares the child, `disturb` acts on it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import io
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from campaigns.kill import disk

MARK = "CRISP_KILL"  # in the environment of what a child starts
MOMENTS = ("replace", "link", "unlink", "rmdir", "mkdir", "fsync")  # of the module os: where files come and go
_WRITES = ("replace", "link", "mkdir", "fsync", "open")  # where a full or broken disk shows


@dataclasses.dataclass(frozen=True)
class Trouble:
    """`kind` and what it needs: seconds after which a signal comes, the number of the call, the error."""

    kind: str
    after: float = 0.0
    call: int = 0
    error: int = 0
    before: bool = True

    def __str__(self) -> str:
        name = errno.errorcode.get(self.error, "")
        details = {
            "moment": f"kill -9 {'before' if self.before else 'after'} call {self.call}",
            "error": f"{name} at call {self.call}",
            "write": f"{name} at write {self.call}",
            "torn": f"kill -9 {'before' if self.before else 'in the middle of'} write {self.call}",
            "limit": f"files of at most {self.call} bytes",
        }
        return details.get(self.kind, f"{self.kind} after {self.after:.2f} s" if self.kind != "none" else "none")


NONE = Trouble("none")


KINDS = {"kill": 28, "moment": 20, "torn": 16, "term": 8, "int": 8, "error": 6, "write": 12, "limit": 6}


def choose(rng: random.Random, seconds: float, calls: int, writes: int, over_ray: bool = False) -> Trouble:
    """Some trouble for a run that takes so many seconds, calls of `os` and writes when it is left alone."""
    kind = rng.choices(tuple(KINDS), tuple(KINDS.values()))[0]
    if over_ray and rng.random() < 0.7:
        kind = rng.choice(("ray worker", "ray head"))
    after = rng.uniform(0.02, 0.9) * seconds
    call = rng.randint(1, max(1, writes if kind in ("write", "torn") else calls))
    if kind == "limit":
        call = int(2 ** rng.uniform(8, 17))
    return Trouble(kind, after, call, rng.choice((errno.ENOSPC, errno.EIO)), rng.random() < 0.5)


def meet(trouble: Trouble, folder: Path) -> Counter:
    """In the child, before it begins to write below the folder."""
    counter = Counter(trouble)
    instead = {"write": trouble.error, "torn": disk.KILL if trouble.before else disk.TEAR}
    disk.watch(folder, trouble.call if trouble.kind in instead else -1, instead.get(trouble.kind, 0))
    if trouble.kind == "limit":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (trouble.call, resource.RLIM_INFINITY))
    return counter


def disturb(child: int, trouble: Trouble, begun: float) -> None:
    """In the parent, when the time has come."""
    if trouble.kind.startswith("ray"):
        wanted = ("gcs_server",) if trouble.kind == "ray head" else ("ray::", "default_worker.py")
        for process, command in marked().items():
            if any(name in command for name in wanted):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                return
    sent = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}.get(trouble.kind)
    if sent is not None:
        time.sleep(max(0.0, trouble.after - (time.monotonic() - begun)))
        os.kill(child, sent)


def marked() -> dict[int, str]:
    """The processes that a child of ours has started, by their environment; with their command."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={os.getpid()}\0".encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().decode(errors="replace")
    return found


class Counter:
    """Counts the calls that change what is on the disk, and acts at the chosen one."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble, self.calls, self.writes = trouble, 0, 0
        for name in dict.fromkeys((*MOMENTS, *_WRITES)):
            if name != "open":
                setattr(os, name, self._watched(name, getattr(os, name)))
        io.open = self._watched("open", io.open)  # type: ignore[assignment]  # what pathlib opens with

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not _writes(args, kwargs):
                return function(*args, **kwargs)
            here = self._count(name)
            if here and self.trouble.kind == "moment" and self.trouble.before:
                os.kill(os.getpid(), signal.SIGKILL)
            if here and self.trouble.kind == "error":
                raise OSError(self.trouble.error, os.strerror(self.trouble.error))
            try:
                return function(*args, **kwargs)
            finally:
                if here and self.trouble.kind == "moment":
                    os.kill(os.getpid(), signal.SIGKILL)

        return watched

    def _count(self, name: str) -> bool:
        """Whether this is the call."""
        self.calls += name in MOMENTS
        self.writes += name in _WRITES
        if self.trouble.kind == "moment":
            return name in MOMENTS and self.calls == self.trouble.call
        return name in _WRITES and self.writes == self.trouble.call


def _writes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
    return any(letter in str(mode) for letter in "wax+")
