"""Triton kernels compiled side by side, before the work that needs them.

A kernel is compiled where it is first launched, one after the other: two minutes for a training step on a new machine.
Here the work is rehearsed first, with every launch of an uncompiled kernel noted and left out; then several processes
compile what was noted into Triton's cache on disk, and the work itself finds it there.

A process is `python -m crispseg.ops.compile_ahead`: kernels come in as JSON lines, and a line goes out for each.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from crispseg.ops.dispatch import HAS_TRITON, kernels_wanted
from crispseg.threads import available_cores

_WORTHWHILE = 4  # kernels; fewer are compiled sooner than processes start
_KNOWN: set[str] = set()  # kernels that this process has seen compiled


class Kernel(NamedTuple):
    """A kernel for certain types, sizes and options: enough to compile it in another process."""

    module: str
    name: str
    specialization: str  # Triton's own description, JSON

    @property
    def identity(self) -> str:
        """Changes with Triton and with the sources the kernel may be made of."""
        text = "\n".join([*self, _triton_version(), _sources()])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def compile_ahead(work: Callable[[], Any], device: torch.device) -> int:
    """Compile the kernels that `work` launches and that are not compiled yet; how many they were.

    `work` is run once without them, so its results there mean nothing: it must leave nothing behind that matters.
    """
    if device.type != "cuda" or not kernels_wanted() or not HAS_TRITON:
        return 0
    with torch.cuda.device(device):
        try:
            needed = [kernel for kernel in rehearse(work) if not _is_compiled(kernel)]
        except RuntimeError:  # the work itself will say what is wrong with it
            return 0
    if len(needed) >= _WORTHWHILE and available_cores() > 1:
        compile_side_by_side(needed, device.index or 0)
    return len(needed)


def rehearse(work: Callable[[], Any]) -> list[Kernel]:
    """The kernels that `work` would have to compile, each once."""
    found: dict[Kernel, None] = {}

    def note(*, fn: Any, compile: dict[str, Any], **others: Any) -> bool:
        key_callees_first(fn.jit_function)
        found[Kernel(fn.module, fn.name, compile["specialization_data"])] = None
        return True  # neither compile nor launch it

    with _cache_hook(note):
        work()
        torch.cuda.synchronize()
    return list(found)


def key_callees_first(function: Any) -> None:
    """Give a kernel the key that it has in Triton's cache, after those of the functions it calls.

    A key holds the constants of the callees that have a key by then: else it would depend on what was compiled before,
    and processes would not find each other's kernels.
    """
    for name in function.fn.__code__.co_names:
        callee = function.fn.__globals__.get(name)
        if type(callee) is type(function) and callee.hash is None:
            key_callees_first(callee)
    function.cache_key  # noqa: B018 (computed once, when it is first asked for)


def compile_side_by_side(kernels: Sequence[Kernel], device: int) -> None:
    """By as many processes as there are cores, with a line on stderr that counts."""
    count = min(len(kernels), max(1, available_cores() - 1))
    started, done, lock = time.monotonic(), 0, threading.Lock()
    left = iter(kernels)

    def feed() -> None:
        nonlocal done
        worker = _Worker(device)
        try:
            while True:
                with lock:
                    kernel = next(left, None)
                if kernel is None:
                    return
                if worker.compile(kernel):
                    _remember(kernel)
                with lock:
                    done += 1
                    _show(f"compiling kernels: {done} of {len(kernels)}")
        finally:
            worker.end()

    threads = [threading.Thread(target=feed, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - started
    _show(f"compiled {len(kernels)} kernels in {seconds:.0f} s; they are kept for the next time", end="\n")


class _Worker:
    def __init__(self, device: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(device)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )

    def compile(self, kernel: Kernel) -> bool:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(json.dumps(kernel), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return False
        return self.process.stdout.readline().strip() == "compiled"

    def end(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def serve(device: int) -> None:
    """Compile what comes in. A kernel that does not compile here is left to its first launch, which then says why."""
    torch.cuda.set_device(device)
    for line in sys.stdin:
        kernel = Kernel(*json.loads(line))
        try:
            function: Any = importlib.import_module(kernel.module)
            for part in kernel.name.split("."):
                function = getattr(function, part)
            key_callees_first(function)
            function.preload(kernel.specialization)
        except Exception as error:
            print(f"failed: {type(error).__name__}", flush=True)
        else:
            print("compiled", flush=True)


@contextlib.contextmanager
def _cache_hook(hook: Callable[..., bool]) -> Iterator[None]:
    from triton import knobs

    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = hook
    try:
        yield
    finally:
        knobs.runtime.jit_cache_hook = before


def _is_compiled(kernel: Kernel) -> bool:
    """By a mark beside Triton's cache: asking the cache itself would mean to translate the kernel first."""
    return kernel.identity in _KNOWN or (_marks() / kernel.identity).exists()


def _remember(kernel: Kernel) -> None:
    _KNOWN.add(kernel.identity)
    with contextlib.suppress(OSError):
        _marks().mkdir(parents=True, exist_ok=True)
        (_marks() / kernel.identity).touch()


def _marks() -> Path:
    from triton import knobs

    return Path(knobs.cache.dir) / "crispseg"


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


_SOURCES: list[str] = []


def _sources() -> str:
    """A digest of all kernels' sources: any of them may be part of another."""
    if not _SOURCES:
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted(Path(__file__).parent.glob("**/*.py")):
            digest.update(path.read_bytes())
        _SOURCES.append(digest.hexdigest())
    return _SOURCES[0]


def _show(text: str, end: str = "") -> None:
    if sys.stderr.isatty():
        print(f"\r{text}", end=end, file=sys.stderr, flush=True)
    elif end:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
