"""In which precision tensors are summed and returned, whatever autocasting would choose."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision in which sums over tokens are kept, and in which the result is returned."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widened(x: Tensor) -> Tensor:
    """Half precision as float32; wider tensors as they are."""
    return x.to(sum_dtype(x.dtype))


def without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run with autocasting off: the operator chooses its precisions itself, sums over tokens stay in float32."""

    @functools.wraps(function)
    def wrapped(first: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not _autocasting(first.device.type):  # an exported program would have a part of its own for each call
            return function(first, *args, **kwargs)
        with torch.autocast(first.device.type, enabled=False):
            return function(first, *args, **kwargs)

    return wrapped


def _autocasting(device: str) -> bool:
    """Whether autocasting is on; on the meta device, where nothing is computed, it does not exist."""
    return device != "meta" and torch.is_autocast_enabled(device)
