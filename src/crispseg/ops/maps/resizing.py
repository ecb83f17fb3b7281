"""A coarser map added to a finer one, and scores resized.

`add_resized` has gradients, the others are for inference only. All resizing is bilinear, pixel centres kept.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.dispatch import ANY_GPU, operator, too_many

_MOST_TIMES = 8  # larger along an axis; the gradients' kernels would take long to compile

Size = tuple[int, int] | torch.Size


def _interpolated(x: Tensor, size: Size) -> Tensor:
    return functional.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)


@operator("add_resized")
def add_resized(finer: Tensor, coarser: Tensor) -> Tensor:
    """finer (B, C, H, W) + coarser (B, C, h, w) resized; in one kernel if they are of one precision. Under autocasting
    torch would return float32, the kernel does not."""
    return finer + _interpolated(coarser, finer.shape[-2:])


@add_resized.unless
def _(finer: Tensor, coarser: Tensor) -> str | None:
    if finer.dtype != coarser.dtype:
        return "two precisions"
    times = max(-(-high // low) for low, high in zip(coarser.shape[-2:], finer.shape[-2:], strict=True))
    return too_many(times, _MOST_TIMES, "times larger")


def plain_gradients(g: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Of a coarse map (B, height, width, C) and of the finer one, from the gradient (B, H, W, C) of their sum."""
    coarse = g.new_zeros(g.shape[0], height, width, g.shape[3]).requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(resized(coarse, g.shape[1:3]), coarse, g)[0], g


@operator("resize_add", gradients="none", room=ANY_GPU)
def resize_add(finer: Tensor, coarser: Tensor) -> Tensor:
    """finer (B, H, W, C) + coarser (B, h, w, C) resized to (H, W), pixel centres kept."""
    return finer + resized(coarser, finer.shape[1:3])


def resized(x: Tensor, size: Size) -> Tensor:
    """x (B, h, w, C) resized to (B, *size, C), by torch."""
    return _interpolated(x.permute(0, 3, 1, 2), size).permute(0, 2, 3, 1)


@operator("upsample", dtypes=(torch.float32,), gradients="none")
def upsample(scores: Tensor, size: Size) -> Tensor:
    """Scores (B, K, h, w) resized to (B, K, *size), pixel centres kept."""
    return _interpolated(scores, size)


@upsample.unless
def _(scores: Tensor, size: Size) -> str | None:
    if torch.compiler.is_compiling() or not scores.is_contiguous():
        return "compiled, or channels last"
    return too_many(max(scores.shape[0] * scores.shape[1], scores.shape[2]), 65535, "maps or rows")  # of a launch
