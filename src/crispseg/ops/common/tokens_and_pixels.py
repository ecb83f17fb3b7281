"""What kernels share in which many pixels meet few tokens or prototypes: rounding, spans of pixels, sums of parts."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.rounding import multiply, rounded

_PARTS, _COLUMNS = 16, 128  # of a sum, in one program at a time


@triton.jit
def like(x, other):
    """x in the precision of other values, or of those that a pointer points to."""
    kind: tl.constexpr = other.dtype.element_ty if other.dtype.is_ptr() else other.dtype
    return rounded(x) if kind == tl.bfloat16 else x.to(kind)


@triton.jit
def product(x, y):
    """x y in float32."""
    return multiply(x, y, tl.zeros([x.shape[0], y.shape[1]], tl.float32))


@triton.jit
def _add_parts_kernel(parts, out, splits, count, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    image = tl.program_id(1).to(tl.int64)
    parts += image * splits * count
    total = tl.zeros([PARTS, COLUMNS], tl.float32)
    for start in range(0, splits, PARTS):
        part = start + tl.arange(0, PARTS)
        here = (part < splits)[:, None] & (column < count)[None, :]
        total += tl.load(parts + part[:, None] * count + column[None, :], mask=here, other=0.0)
    result = tl.sum(total, 0).to(out.dtype.element_ty)
    tl.store(out + image * count + column, result, mask=column < count)


def add_parts(parts: Tensor, out: Tensor) -> None:
    """Parts (B, splits, ...) summed over splits, in a fixed order, into out (B, ...)."""
    batch, splits = parts.shape[:2]
    count = out[0].numel()
    _add_parts_kernel[(triton.cdiv(count, _COLUMNS), batch)](
        parts, out, splits, count, PARTS=_PARTS, COLUMNS=_COLUMNS, num_warps=4
    )
