"""Looks at the machine: what is installed, what runs, and whether the operator computes what it should here."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import shutil
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from crispseg import __version__, create_model, list_models, load
from crispseg.errors import UserError
from crispseg.threads import available_cores

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from crispseg.models.base import SegmentationModel


class Finding(NamedTuple):
    status: Literal["ok", "missing", "broken"]
    what: str
    found: str


# package -> what it is for, and how to get it
_OPTIONAL = {
    "rasterio": ("reading and writing maps", "pip install rasterio"),
    "rio-cogeo": ("checking Cloud Optimized GeoTIFFs", "pip install rio-cogeo"),
    "pyogrio": ("writing polygons", "pip install pyogrio shapely"),
    "matplotlib": ("plots", "pip install 'crispseg[plots]'"),
    "tensorboard": ("TensorBoard logs", "pip install 'crispseg[track]'"),
    "mlflow-skinny": ("MLflow logs", "pip install 'crispseg[mlflow]'"),
    "wandb": ("Weights & Biases logs", "pip install 'crispseg[wandb]'"),
    "timm": ("peer networks", "pip install 'crispseg[peers]'"),
    "onnxruntime": ("ONNX export", "pip install 'crispseg[export]'"),
    "fastapi": ("maps in the browser", "pip install 'crispseg[view]'"),
    "huggingface_hub": ("models on the Hugging Face hub", "pip install 'crispseg[hub]'"),
    "pystac": ("STAC catalogues", "pip install 'crispseg[stac]'"),
    "pyarrow": ("GeoParquet", "pip install 'crispseg[parquet]'"),
    "ray": ("more than one machine", "pip install 'crispseg[ray]'"),
    "shtab": ("words completed by the shell", "pip install 'crispseg[completion]'"),
    "triton": ("GPU kernels", "comes with CUDA builds of torch"),
}


def examine() -> list[Finding]:
    import torch

    findings = [
        Finding("ok", "crispseg", f"{__version__}, Python {platform.python_version()}, {platform.platform()}"),
        Finding("ok", "torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
        Finding("ok", "machine", _machine()),
        *_devices(),
        _c_compiler(torch.cuda.is_available()),
        _operator("cpu"),
    ]
    if torch.cuda.is_available():
        findings.append(_operator("cuda"))
    return findings + [_package(name, *use) for name, use in _OPTIONAL.items()] + _paths()


def _paths() -> list[Finding]:
    """Faster ways on a CPU, then operator by operator its kernel or its formula, and why."""
    import torch

    from crispseg.ops.common.hardware import multiplies_bfloat16
    from crispseg.ops.dispatch import CPU_WAYS, operators, switched_off, why_not_on_a_cpu

    switched_off()  # says so if there is no such operator
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = []
    for name, what in CPU_WAYS.items():
        why = why_not_on_a_cpu(name)
        found.append(Finding("missing" if why else "ok", f"cpu {name}", f"torch's own way: {why}" if why else what))
    if multiplies_bfloat16(torch.device("cpu")):
        found.append(Finding("ok", "cpu bfloat16", "the processor multiplies in it: the fast precision here"))
    else:
        found.append(Finding("missing", "cpu bfloat16", "float32: the processor has no instructions for it"))
    for name, op in operators().items():
        if why := op.why_not_on(device):
            found.append(Finding("missing", f"op {name}", f"formula: {why}"))
        else:
            found.append(Finding("ok", f"op {name}", f"kernel: {op.words}"))
    return found


def warm(name: str, size: int, batch: int) -> list[Finding]:
    """Compile ahead what predicting and training with this model needs, for images of this size."""
    import torch

    if not torch.cuda.is_available():
        raise UserError("--warm compiles kernels for a GPU, and torch sees none on this machine")
    device = torch.device("cuda")
    model = (create_model(name) if name in list_models() else load(name)).to(device)
    images = torch.rand(batch, model.in_channels, size, size, device=device)
    found = []
    for precision in (torch.bfloat16, torch.float32):
        fused = model.eval().fused(precision, graphs=False)
        for part in (images[:1], images):
            work = functools.partial(fused, part)
            found.append(_compiled(f"predict, {precision}, batch {len(part)}", work, device))
    found.append(_compiled(f"train, bfloat16, batch {batch}", lambda: _training_pass(model.train(), images), device))
    return found


def _training_pass(model: SegmentationModel, images: Tensor) -> None:
    import torch

    from crispseg.losses import LossConfig, segmentation_loss

    labels = torch.zeros(len(images), *images.shape[2:], dtype=torch.int64, device=images.device)
    with torch.autocast("cuda", torch.bfloat16):
        output = model(images)
    segmentation_loss(output, labels, LossConfig())["total"].backward()


def _compiled(what: str, work: Callable[[], Any], device: torch.device) -> Finding:
    """Side by side, then run once, so that a kernel that does not fit this GPU says so now."""
    from crispseg.ops.compile_ahead import compile_ahead
    from crispseg.ops.dispatch import operators

    started = time.monotonic()
    count = compile_ahead(work, device)
    work()
    given_up = [name for name, op in operators().items() if op.failure]
    text = f"{count} kernels compiled, {time.monotonic() - started:.0f} s"
    if given_up:
        return Finding("missing", what, f"{text}; by their formulas: {', '.join(given_up)}")
    return Finding("ok", what, text)


def _machine() -> str:
    free = shutil.disk_usage(os.curdir).free / 2**30
    memory = ""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB memory, "
    cores = available_cores()
    return f"{cores} cores, {memory}{free:.0f} GiB free on this disk"


def _devices() -> list[Finding]:
    import torch

    if not torch.cuda.is_available():
        return [Finding("missing", "GPU", "none that torch can use; everything runs on the CPU")]
    found = []
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        half = "bf16 and fp16" if torch.cuda.is_bf16_supported() else "fp16 only"
        memory = properties.total_memory / 2**30
        found.append(Finding("ok", f"GPU {i}", f"{properties.name}, {memory:.0f} GiB, {half}"))
    return found


def _c_compiler(gpu: bool) -> Finding:
    """Triton builds a small C module the first time it launches a kernel on a machine, as its `_build` does."""
    found = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    if found and shutil.which(found) and headers.is_file():
        return Finding("ok", "C compiler", f"{found}, with Python's headers (Triton's launcher of GPU kernels)")
    lacks = f"Python's headers ({headers})" if found and shutil.which(found) else f"a C compiler ({found or 'gcc'})"
    remedy = "apt install gcc python3-dev, or CC=PATH for another"
    if not gpu:
        return Finding("missing", "C compiler", f"none needed without a GPU; with one, install {lacks}: {remedy}")
    return Finding("broken", "C compiler", f"GPU kernels cannot start without {lacks}: {remedy}")


def _operator(device: str) -> Finding:
    """Run the operator in float32 against its float64 reference."""
    import torch

    from crispseg.ops import Gates, ncssd

    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    v, b, c, rho, d = draw(1, 600, 2, 16), draw(1, 600, 8), draw(1, 600, 8), draw(1, 600, 2).exp(), draw(2)
    gates = [0.1 * draw(n) for n in (2, 2, 16, 16)]
    truth = ncssd(v, b, c, rho, d, Gates(*gates), backend="reference")
    try:
        moved = [x.to(device, torch.float32) for x in (v, b, c, rho, d, *gates)]
        result = ncssd(moved[0], moved[1], moved[2], moved[3], moved[4], Gates(*moved[5:]))
        error = ((result.cpu().double() - truth).norm() / truth.norm()).item()
    except RuntimeError as problem:
        return Finding("broken", f"operator on {device}", str(problem).splitlines()[0])
    status: Literal["ok", "broken"] = "ok" if error < 1e-5 else "broken"
    return Finding(status, f"operator on {device}", f"relative error {error:.1e} against the float64 reference")


def _package(name: str, use: str, install: str) -> Finding:
    try:
        return Finding("ok", name, f"{importlib.metadata.version(name)} ({use})")
    except importlib.metadata.PackageNotFoundError:
        return Finding("missing", name, f"not installed: {use} ({install})")
