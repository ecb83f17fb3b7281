"""Which backend is wanted: whether Triton's kernels can run here, and whether somebody forbade or forced them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Iterator
from importlib import metadata

import torch
from torch import version

ENVIRONMENT_VARIABLE = "CRISPSEG_OPS_BACKEND"
_SHARED_MEMORY = 227 * 1024

OLDEST_TRITON = (3, 6)  # programmatic dependent launch; older ones do not even import the kernels


def _has_triton() -> bool:
    """The kernels need torch built for CUDA, or Triton's interpreter, and a Triton that knows what they use."""
    if version.cuda is None and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        release = metadata.version("triton").split(".")
    except metadata.PackageNotFoundError:  # under another name: somebody's own build
        return True
    return (int(release[0]), int(release[1])) >= OLDEST_TRITON


HAS_TRITON = _has_triton()


def kernels_wanted() -> bool:
    """Whether operators with kernels of their own may use them: not in an exported program, which must run where
    Triton is not installed."""
    return HAS_TRITON and not exporting() and os.environ.get(ENVIRONMENT_VARIABLE) in (None, "", "triton")


def exporting() -> bool:
    """Whether torch.export is at work. While torch.compile traces, torch 2.11 says so of itself as well."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


@functools.cache
def has_room(device: torch.device) -> bool:
    """Whether a program has the 227 KB of shared memory that inference kernels were cut for: data-centre GPUs from
    Hopper on. Others have 99 to 163, and run the formulas instead."""
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 0)) >= _SHARED_MEMORY


def kernels_apply(*tensors: torch.Tensor) -> bool:
    """Whether inference kernels are for these tensors: on CUDA with room for them, in half precision, and no
    gradient is asked for.

    In float32 most of the work is products that tensor cores do not help with, and torch's own are as fast.
    """
    return (
        all(x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) for x in tensors)
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
        and kernels_wanted()
        and has_room(tensors[0].device)
    )


@contextlib.contextmanager
def only(name: str) -> Iterator[None]:
    """Within the block every operator of this room runs on that backend: "torch" is the plain formulas."""
    before = os.environ.get(ENVIRONMENT_VARIABLE)
    os.environ[ENVIRONMENT_VARIABLE] = name
    try:
        yield
    finally:
        os.environ.pop(ENVIRONMENT_VARIABLE)
        if before is not None:
            os.environ[ENVIRONMENT_VARIABLE] = before
