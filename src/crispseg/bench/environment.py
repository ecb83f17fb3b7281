"""The machine in words, and its switches set the same for every model."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from crispseg import __version__
from crispseg.bench.settings import Settings
from crispseg.threads import available_cores

# torch.compile keeps one entry per model and shape, and past its limit (8) it would quietly run the plain model.
_COMPILER = {"recompile_limit": 256, "fail_on_recompile_limit_hit": True}


def describe(settings: Settings) -> dict[str, Any]:
    facts = {
        "crispseg": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": available_cores(),
        "threads": settings.threads,
        "device": settings.device,
        "tf32": False,
    }
    if settings.on_cuda:
        properties = torch.cuda.get_device_properties(settings.device)
        facts |= {
            "gpu": properties.name,
            "gpu_memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "cudnn_benchmark": True,
        }
    return facts


def sentence(facts: dict[str, Any]) -> str:
    """One line for tables."""
    where = f"{facts['cpu']}, {facts['cores']} cores, {facts['threads']} thread{'s' * (facts['threads'] > 1)}"
    if "gpu" in facts:
        where = f"{facts['gpu']} ({where}), CUDA {facts['cuda']}, cuDNN {facts['cudnn']}"
    return f"{where}; torch {facts['torch']}, Python {facts['python']}, crispseg {facts['crispseg']}; tf32 off"


@contextlib.contextmanager
def switches(settings: Settings) -> Iterator[None]:
    """tf32 off, cuDNN free to pick its fastest algorithm, the threads asked for; as before when the block ends."""
    cudnn = torch.backends.cudnn
    before = (torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark, torch.get_num_threads())
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32, cudnn.benchmark = False, True
    torch.set_num_threads(settings.threads)
    try:
        with _device(settings), _compiler(settings):
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, cudnn.benchmark = before[1:3]
        torch.set_num_threads(before[3])


def _device(settings: Settings) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(settings.device) if settings.on_cuda else contextlib.nullcontext()


def _compiler(settings: Settings) -> contextlib.AbstractContextManager[Any]:
    if "compiled" not in settings.modes:
        return contextlib.nullcontext()
    import torch._dynamo

    return torch._dynamo.config.patch(_COMPILER)


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
