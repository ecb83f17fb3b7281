# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""A residual branch added to its map, or dropped, sample by sample; `drop_path.py` says what that is."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.custom import custom_op, differentiable
from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.rounding import like, widened
from crispseg.ops.train import drop_path

_BLOCK, _WARPS = 2048, 4  # elements of a program, and its warps


@triton.jit
def _scaled(
    x, branch, drawn, out, size, rate, ADD: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    """branch / (1 - rate) where the sample was drawn at or above `rate`, else zero; plus x if wanted."""
    after_the_kernel_before(DEPENDENT)
    sample = tl.program_id(1)
    scale = tl.where(tl.load(drawn + sample) >= rate, 1 / (1 - rate), 0.0)
    start = sample.to(tl.int64) * size
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    value = widened(tl.load(branch + start + place, mask=inside, other=0.0)) * scale
    if ADD:
        value += widened(tl.load(x + start + place, mask=inside, other=0.0))
    value = like(value, out)
    tl.store(out + start + place, value, mask=inside)


def scaled(branch: Tensor, drawn: Tensor, rate: float, x: Tensor | None = None) -> Tensor:
    """Of a contiguous branch (B, ...), with contiguous x of its shape added; drawn (B,) in float32."""
    out = torch.empty_like(branch)
    samples = len(branch)
    size = branch.numel() // samples
    _scaled[(triton.cdiv(size, _BLOCK), samples)](
        branch if x is None else x, branch, drawn, out, size, rate, ADD=x is not None, BLOCK=_BLOCK, num_warps=_WARPS,
        **launch_options(branch.device),
    )  # fmt: skip
    return out


@drop_path.add_kept.kernel
@custom_op("add_kept", like=lambda x, *rest: x.new_empty(x.shape))
def _add_kept(x: Tensor, branch: Tensor, drawn: Tensor, rate: float) -> Tensor:
    return scaled(branch, drawn, rate, x)


@custom_op("scale_kept", like=lambda branch, *rest: branch.new_empty(branch.shape))
def _scale_kept(branch: Tensor, drawn: Tensor, rate: float) -> Tensor:
    return scaled(branch.contiguous(), drawn, rate)


differentiable(
    _add_kept,
    lambda g, drawn, rate: (g, _scale_kept(g, drawn, rate)),
    drop_path.add_kept,
    remember=lambda inputs, outputs: inputs[2:],
    plain=drop_path.plain_gradients,
)
