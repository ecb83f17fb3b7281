# mypy: allow-untyped-defs, allow-untyped-decorators
"""Tuples of blocks, which a kernel's compiler unrolls: neighbouring pixels, the taps of a window."""

from __future__ import annotations

import triton
import triton.language as tl  # noqa: F401 - which Triton's interpreter looks for here


@triton.jit
def with_one_more(blocks, block):
    return blocks + (block,)  # noqa: RUF005 - Triton knows no stars
