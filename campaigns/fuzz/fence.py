"""A fence around reading: no network, no other program, no file outside what was named. Python's audit events tell.

What C libraries do by themselves is not seen here: `tests/geo/test_drivers.py` looks after GDAL.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_NEVER = (
    "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "webbrowser.open",
    "pickle.find_class",
)  # fmt: skip
_CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.truncate", "os.chmod")
# Python itself, what is installed, this repository, and what the system tells about itself
_READABLE = tuple(
    os.path.realpath(path)
    for path in (
        *(sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")),
        sys.prefix,
        sys.base_prefix,
        Path(__file__).parents[2],
        "/proc",
        "/sys",
        "/dev/null",
        "/dev/urandom",
        "/usr/share",
        "/usr/lib",
        "/etc/localtime",
    )
)


class Escape(BaseException):
    """Something reached beyond the fence. Not an Exception, so that nothing takes it for damage."""


class _Fence:
    inside: str | None = None  # the folder that may be read and written; None: no fence
    installed = False


@contextlib.contextmanager
def fenced(folder: Path) -> Iterator[None]:
    """In this block only `folder` may be touched."""
    if not _Fence.installed:
        sys.addaudithook(_judge)
        _Fence.installed = True
    _Fence.inside = os.path.realpath(folder)
    try:
        yield
    finally:
        _Fence.inside = None


def _judge(event: str, args: tuple[object, ...]) -> None:
    inside = _Fence.inside
    if inside is None:
        return
    if event in _NEVER:
        _Fence.inside = None  # whatever tells of it may open files
        raise Escape(f"{event} {args!r}"[:200])
    if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
        flags = args[2] if isinstance(args[2], int) else 0
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        _require(event, args[0], inside, () if writes else _READABLE)
    elif event in _CHANGES:
        paths = [os.fsdecode(path) for path in args[:2] if isinstance(path, str | bytes | os.PathLike)]
        folders = [folder for folder in args[len(paths) :] if isinstance(folder, int)][-len(paths) :]
        for path, folder in zip(paths, folders, strict=False):
            base = f"/proc/self/fd/{folder}" if folder >= 0 else ""  # some name a file within an opened folder
            _require(event, os.path.join(base, path), inside, ())


def _require(event: str, path: str | bytes | os.PathLike[str], inside: str, more: tuple[str, ...]) -> None:
    _Fence.inside = None  # looking up the path must not come here again
    place = os.path.realpath(os.fsdecode(path))
    own = (os.devnull, f"/proc/{os.getpid()}/clear_refs")  # the latter: to measure our own memory
    allowed = place in own or any(
        place == root or place.startswith(root.rstrip(os.sep) + os.sep) for root in (inside, *more)
    )
    if not allowed:
        raise Escape(f"{event} {place}"[:200])
    _Fence.inside = inside
