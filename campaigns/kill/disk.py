"""A disk that fails at the chosen write of any library: `disk.c`, compiled and preloaded where there is a compiler."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KILL, TEAR = -1, -2  # instead of an error's number
PRELOADED = "CRISP_DISK"  # says where the library is that this process was started with, if there is one


def library() -> Any:
    """The preloaded one; None where there is none."""
    path = os.environ.get(PRELOADED)
    return ctypes.CDLL(path) if path and path in os.environ.get("LD_PRELOAD", "") else None


def watch(folder: Path, at: int, what: int) -> None:
    """In a child: from here on its writes below the folder are counted, and the chosen one goes wrong."""
    disk = library()
    if disk is not None:
        disk.disk_watch(os.fsencode(folder.resolve()) + b"/", ctypes.c_long(at), what)


def writes() -> int:
    disk = library()
    return int(disk.disk_writes()) if disk is not None else 0


@contextlib.contextmanager
def compiled() -> Iterator[dict[str, str]]:
    """What to add to the environment of a process that is to have such a disk; nothing where that cannot be."""
    compiler = shutil.which("cc") if sys.platform == "linux" else None
    if compiler is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="crisp-disk-") as folder:
        made = Path(folder) / "disk.so"
        source = Path(__file__).with_name("disk.c")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"no failing disk: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            yield {}
            return
        others = os.environ.get("LD_PRELOAD", "")
        yield {PRELOADED: str(made), "LD_PRELOAD": f"{made} {others}".strip()}
