# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""A residual sum and its LayerNorm in one Triton kernel; `maps/normalize_gradients.py` has the gradients."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.tokens_and_pixels import like
from crispseg.ops.maps.normalize_kernels import standardised

_ELEMENTS, _WARPS = 2048, 4  # of a program, in whole rows


@triton.jit
def _add_and_normalise(
    x, branch, weight, bias, out, count, eps,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The sum, in the branch's place, and its LayerNorm."""
    after_the_kernel_before(EARLY)
    first = tl.program_id(0).to(tl.int64) * ROWS
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    used = columns < WIDTH
    inside = (rows < count - first)[:, None] & used[None, :]
    places = first * WIDTH + rows[:, None] * WIDTH + columns[None, :]
    more = tl.load(branch + places, mask=inside, other=0.0).to(tl.float32)
    total = like(tl.load(x + places, mask=inside, other=0.0).to(tl.float32) + more, branch)
    tl.store(branch + places, total, mask=inside)
    gain = tl.load(weight + columns, mask=used, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=used, other=0.0).to(tl.float32)
    standard, _ = standardised(total.to(tl.float32), columns, eps, WIDTH, COLUMNS)
    tl.store(out + places, like(standard * gain[None, :] + shift[None, :], out), mask=inside)


def add_and_normalise_(branch: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm(x + branch) of contiguous x and branch (rows, C); branch becomes the sum."""
    count, width = x.shape
    columns = triton.next_power_of_2(width)
    rows = max(1, _ELEMENTS // columns)
    out = torch.empty_like(branch)
    _add_and_normalise[(triton.cdiv(count, rows),)](
        x, branch, weight, bias, out, count, eps, WIDTH=width, ROWS=rows, COLUMNS=columns, num_warps=_WARPS,
        **launch_options(x.device),
    )  # fmt: skip
    return out
