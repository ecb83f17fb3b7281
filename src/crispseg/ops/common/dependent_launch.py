# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Dependent launches: a kernel's programs start, and wait, while the kernel before is still at work.

On GPUs that can (Hopper and newer), a kernel launched so costs a microsecond or two less when it comes after another.
Every kernel that takes DEPENDENT begins by waiting for the kernel before to be done, with all that it wrote.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_FIRST_CAPABILITY = (9, 0)


def launch_options(device: torch.device) -> dict[str, Any]:
    """Arguments of a launch."""
    return {"DEPENDENT": True, "launch_pdl": True} if _can(device) else {"DEPENDENT": False}


@functools.cache
def _can(device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and os.environ.get("TRITON_INTERPRET") != "1"
        and torch.cuda.get_device_capability(device) >= _FIRST_CAPABILITY
    )


@triton.jit
def after_the_kernel_before(DEPENDENT: tl.constexpr):
    """The first thing that a program of such a kernel does."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
