# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Small tensors copied in another precision, several in one launch; `weight_copies.py` says what for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.rounding import rounded

AT_ONCE = 4  # tensors of one launch
_BLOCK = 2048  # elements that a program copies


@triton.jit
def _copy(source, copy, first, count, length, BLOCK: tl.constexpr):
    """Elements from `first` on; the copy is longer than its source, or as long, and zero there."""
    place = first + tl.arange(0, BLOCK)
    value = tl.load(source + place, mask=place < count, other=0.0)
    if copy.dtype.element_ty == tl.bfloat16 and source.dtype.element_ty == tl.float32:
        value = rounded(value)
    tl.store(copy + place, value.to(copy.dtype.element_ty), mask=place < length)


@triton.jit
def _copies(
    source0, source1, source2, source3, copy0, copy1, copy2, copy3,
    count0, count1, count2, count3, length0, length1, length2, length3,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    after_the_kernel_before(EARLY)
    first, which = tl.program_id(0) * BLOCK, tl.program_id(1)
    if which == 0:
        _copy(source0, copy0, first, count0, length0, BLOCK)
    elif which == 1:
        _copy(source1, copy1, first, count1, length1, BLOCK)
    elif which == 2:
        _copy(source2, copy2, first, count2, length2, BLOCK)
    else:
        _copy(source3, copy3, first, count3, length3, BLOCK)


def copies(sources: Sequence[Tensor], dtype: torch.dtype, spare: int) -> list[Tensor]:
    """Contiguous copies of up to AT_ONCE tensors, each with so many rows of zeros below."""
    given = [x.contiguous() for x in sources]
    made = [torch.empty((len(x) + spare, *x.shape[1:]), dtype=dtype, device=x.device) for x in given]
    unused = AT_ONCE - len(given)

    def four(values):
        return *values, *(values[0] for _ in range(unused))

    _copies[(triton.cdiv(max(x.numel() for x in made), _BLOCK), len(given))](
        *four(given), *four(made), *four([x.numel() for x in given]), *four([x.numel() for x in made]),
        BLOCK=_BLOCK, num_warps=4, **launch_options(given[0].device),
    )  # fmt: skip
    return made
