# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls
"""Between float32 and half precision, on a GPU and in Triton's interpreter."""

from __future__ import annotations

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def rounded(x):
    """To bfloat16; the interpreter would cut digits off instead of rounding."""
    if INTERPRETED:
        x = ((x.to(tl.float32).to(tl.uint32, bitcast=True) + 0x8000) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return x.to(tl.bfloat16)


@triton.jit
def like(x, other):
    """x in the precision of other values, or of those that a pointer points to."""
    kind: tl.constexpr = other.dtype.element_ty if other.dtype.is_ptr() else other.dtype
    return rounded(x) if kind == tl.bfloat16 else x.to(kind)


@triton.jit
def widened(x):
    """To float32. The halves of a pair of bfloat16 take one instruction each this way, where `to` takes two."""
    if x.dtype == tl.bfloat16 and not INTERPRETED:
        x = tl.inline_asm_elementwise(
            "{.reg .b32 h; shl.b32 h, $2, 16; mov.b32 $0, h; and.b32 h, $2, 0xffff0000; mov.b32 $1, h;}",
            "=f,=f,r", [x], tl.float32, is_pure=True, pack=2,
        )  # fmt: skip
    return x.to(tl.float32)


@triton.jit
def multiply(x, y, total):
    """total + x y."""
    if INTERPRETED:  # which cannot multiply bfloat16
        x, y = x.to(tl.float32), y.to(tl.float32)
    return tl.dot(x, y, total, input_precision="ieee")
