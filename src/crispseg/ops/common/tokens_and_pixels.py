"""What kernels share in which many pixels meet few tokens or prototypes: spans of pixels, masks, LayerNorm, products,
sums of parts."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.hardware import multiprocessors
from crispseg.ops.common.rounding import multiply

LOG2_E = tl.constexpr(1.4426950408889634)
_PARTS, _COLUMNS = 16, 128  # of a sum, in one program at a time


class AttentionTiles(NamedTuple):
    """Pixels that a program holds at a time, its warps, the stages of its loads, and how many programs each
    multiprocessor gets of the pixels of all images: two, unless its memory allows only one."""

    pixels: int
    warps: int
    stages: int
    resident: int = 2

    def cut(self, pixels: Tensor, beside: int = 1) -> tuple[int, int, dict[str, Any]]:
        """Of pixels (B, L, D), on which `beside` programs work at once: how many pixels each takes, one block after
        another, how many spans of an image that makes, and what the kernel is compiled for."""
        tiles = _SMALLEST if pixels.dtype == torch.float32 else self
        batch, length, _ = pixels.shape
        blocks, programs = triton.cdiv(length, tiles.pixels), tiles.resident * multiprocessors(pixels.device)
        span = triton.cdiv(blocks, max(1, min(blocks, programs // (batch * beside)))) * tiles.pixels
        even = length % tiles.pixels == 0
        fixed = {"PIXELS": tiles.pixels, "EVEN": even, "num_warps": tiles.warps, "num_stages": tiles.stages}
        return span, triton.cdiv(length, span), fixed


_SMALLEST = AttentionTiles(16, 4, 1)  # for the interpreter, in float32: a GPU has the formulas for that


def grouped(rows: int, count: int) -> int:
    """How many heads or classes, of so many, are worked on at once: each has `rows` rows of a product, a power of two,
    of which a product has 16 at least and here 64 at most."""
    return max(16 // rows, min(64 // rows, triton.next_power_of_2(count)), 1)


@triton.jit
def inside(index, end, EVEN: tl.constexpr):
    """Which of the indices are in range; where all are known to be, the compiler drops the mask."""
    return tl.full(index.shape, True, tl.int1) if EVEN else index < end


@triton.jit
def normalised(x, columns, weight, bias, eps, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """LayerNorm of the rows of x, whose columns beyond WIDTH are zero."""
    used = inside(columns, WIDTH, WIDTH == PADDED)
    x -= (tl.sum(x, 1) / WIDTH)[:, None]
    if WIDTH < PADDED:
        x = tl.where(used[None, :], x, 0.0)
    scale = tl.rsqrt(tl.sum(x * x, 1) / WIDTH + eps)
    gain = tl.load(weight + columns, mask=used, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=used, other=0.0).to(tl.float32)
    return x * scale[:, None] * gain[None, :] + shift[None, :]


@triton.jit
def product(x, y):
    """x y in float32."""
    return multiply(x, y, tl.zeros([x.shape[0], y.shape[1]], tl.float32))


@triton.jit
def _add_spans_kernel(parts, out, splits, count, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
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


def add_spans(parts: Tensor, out: Tensor) -> None:
    """Parts (B, spans, ...) summed over spans, in a fixed order, into out (B, ...)."""
    batch, splits = parts.shape[:2]
    count = out[0].numel()
    _add_spans_kernel[(triton.cdiv(count, _COLUMNS), batch)](
        parts, out, splits, count, PARTS=_PARTS, COLUMNS=_COLUMNS, num_warps=4
    )
