"""Telling whether a file is still what it was: the whole of small files, samples and times of large ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WHOLE = 16 << 20  # bytes; larger files are sampled
_SAMPLE, _SAMPLES = 1 << 16, 16  # the first and the last bytes, and some places in between
_THREADS = 8


def stamp(path: str | os.PathLike[str], moves: bool = False) -> str:
    """Changes when the file does.

    Up to 16 MiB it is a hash of the content alone, so a copy has the same one. Of a larger file it is the size, a hash
    of its head, its tail and places in between, and the time at which the system last saw it change, which nobody can
    set back. A file that `moves` between machines keeps only the time of its last writing, if that.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE:
            return f"{size}-{hashlib.file_digest(file, 'blake2b').hexdigest()[:32]}"
        digest = hashlib.blake2b()
        for k in range(_SAMPLES):
            file.seek((size - _SAMPLE) * k // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE))
        about = os.fstat(file.fileno())
        return f"{size}-{digest.hexdigest()[:32]}-{about.st_mtime_ns if moves else about.st_ctime_ns}"


def stamps(paths: Iterable[str | os.PathLike[str]], moves: bool = False) -> dict[str, str]:
    """The stamp of every file that is there, by absolute name; several are read at once."""
    files = {os.path.abspath(path): path for path in paths if Path(path).is_file()}
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(files, pool.map(lambda path: stamp(path, moves), files.values()), strict=True))


def are_copies(stamped: Mapping[Path, str]) -> bool:
    """Whether all files have the content of these stamps, whenever they were written."""
    if any(str(path.stat().st_size) != size_of(one) for path, one in stamped.items()):
        return False
    now = stamps(stamped)
    return all(content_of(now[os.path.abspath(path)]) == content_of(one) for path, one in stamped.items())


def size_of(stamped: str) -> str:
    return stamped.split("-")[0]


def content_of(stamped: str) -> str:
    """A stamp without its time."""
    return "-".join(stamped.split("-")[:2])


def changed(before: Mapping[str, str], now: Mapping[str, str], shown: int = 5) -> str:
    """Which files differ, in words; empty when none does."""
    words = [f"{name} is gone" for name in before if name not in now]
    words += [f"{name} is new" for name in now if name not in before]
    words += [f"{name} has changed" for name in before if name in now and before[name] != now[name]]
    more = [f"{len(words) - shown} more"] if len(words) > shown else []
    return ", ".join([*words[:shown], *more])


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
