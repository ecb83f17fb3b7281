"""Triton kernels compiled side by side, before the work that needs them.

A kernel is compiled where it is first launched, one after the other: two minutes for a training step on a new machine.
Here the work is rehearsed first, with every launch of an uncompiled kernel noted and left out; then several processes
compile what was noted into Triton's cache on disk, and the work itself finds it there.

The compiler is `python -m crispseg.ops.compile_ahead CAPABILITY PROCESSES`: kernels come in as JSON lines, and when all
are there it forks and a line goes out for each. It never speaks to the GPU, as opening it takes longer than compiling.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch

from crispseg.ops.dispatch import HAS_TRITON, kernels_wanted
from crispseg.threads import available_cores

_WORTHWHILE = 4  # kernels; fewer are compiled sooner than processes start
# Modules whose kernels take seconds each to compile, most others half of one: begun last, they would be waited for.
_LONG = ("convolution_kernels", "pixel_attention_kernels", "token_attention_kernels")
_KNOWN: set[str] = set()  # kernels that this process has seen compiled
_LOADING: list[subprocess.Popen[str]] = []  # a compiler that was started for work to come


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
    if not _can_compile(device):
        return 0
    expect_work(device)  # loads while the work is rehearsed
    compiler = _LOADING.pop() if _LOADING else None
    with torch.cuda.device(device):
        try:
            needed = [kernel for kernel in rehearse(work) if not _is_compiled(kernel)]
        except RuntimeError:  # the work itself will say what is wrong with it
            needed = []
    if available_cores() > 1 and len(needed) >= _WORTHWHILE:
        compile_side_by_side(needed, compiler or start_compiler(device))
    elif compiler is not None:
        with compiler:
            compiler.kill()
    return len(needed)


def expect_work(device: torch.device) -> None:
    """On a new machine kernels will be needed for sure: start the compiler, which takes seconds to load, ahead of
    what comes before the work. Where no work comes it ends with this process."""
    if _can_compile(device) and available_cores() > 1 and not _LOADING and not _marks().exists():
        _LOADING.append(start_compiler(device))


def _can_compile(device: torch.device) -> bool:
    return device.type == "cuda" and kernels_wanted() and HAS_TRITON


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


def start_compiler(device: torch.device) -> subprocess.Popen[str]:
    """The process of `serve`, for this GPU, on all cores but the one that waits."""
    major, minor = torch.cuda.get_device_capability(device)
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(10 * major + minor), str(max(1, available_cores() - 1))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )


def compile_side_by_side(kernels: Sequence[Kernel], compiler: subprocess.Popen[str]) -> None:
    """Hand the kernels over and count them as they are done, on stderr. What is not compiled is left to its launch."""
    assert compiler.stdin is not None and compiler.stdout is not None
    started, compiled = time.monotonic(), 0
    kernels = sorted(kernels, key=lambda kernel: not kernel.module.endswith(_LONG))
    with contextlib.suppress(BrokenPipeError), compiler.stdin as given:
        given.writelines(json.dumps(kernel) + "\n" for kernel in kernels)
    for done, line in enumerate(compiler.stdout, 1):
        number, word = line.split(maxsplit=1)
        if word.strip() == "compiled":
            _remember(kernels[int(number)])
            compiled += 1
        _show(f"compiling kernels: {done} of {len(kernels)}")
    compiler.wait()
    seconds = time.monotonic() - started
    late = f"; {len(kernels) - compiled} are left to their first launch" if compiled < len(kernels) else ""
    _show(f"compiled {compiled} kernels in {seconds:.0f} s; they are kept for the next time{late}", end="\n")


class OnlyATarget:
    """What Triton asks of a driver until it launches: the kind of GPU."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return self.capability  # kernels are kept by device: each capability has its own

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)


def serve(capability: int, processes: int) -> None:
    """Compile what comes in, and say its number and how it went."""
    from triton.runtime import driver

    driver.set_active(OnlyATarget(capability))
    kernels = [Kernel(*json.loads(line)) for line in sys.stdin]
    for kernel in kernels:
        importlib.import_module(kernel.module)  # once, before the processes part
    if not kernels:
        return
    parting = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(processes, len(kernels)), mp_context=parting) as pool:
        numbers = {pool.submit(_compile, kernel): number for number, kernel in enumerate(kernels)}
        for future in as_completed(numbers):
            print(numbers[future], future.result(), flush=True)


def _compile(kernel: Kernel) -> str:
    """A kernel that does not compile here is left to its first launch, which then says why."""
    try:
        function: Any = sys.modules[kernel.module]
        for part in kernel.name.split("."):
            function = getattr(function, part)
        key_callees_first(function)
        made = function.preload(kernel.specialization)
    except Exception as error:
        return f"failed: {type(error).__name__}"
    with contextlib.suppress(Exception):  # what calls it, in C: newer Tritons compile no such thing
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(made.src, made.metadata)
    return "compiled"


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


@functools.cache
def _sources() -> str:
    """A digest of all kernels' sources: any of them may be part of another."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(Path(__file__).parent.glob("**/*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _show(text: str, end: str = "") -> None:
    if sys.stderr.isatty():
        print(f"\r{text}", end=end, file=sys.stderr, flush=True)
    elif end:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
