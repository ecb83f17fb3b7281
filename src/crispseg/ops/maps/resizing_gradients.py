"""Triton kernel of the gradient in `resizing.py`: each coarse pixel gathers from the fine ones that it went into.

Along an axis these are the fine pixels whose centre lies less than one coarse pixel away, or beyond the last centre.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.maps.resizing_kernels import between

_VALUES, _WARPS = 2048, 4  # of a program


@triton.jit
def _first(index, scale):
    """The first fine pixel that a coarse one went into; rounding may lose one whose weight is next to nothing."""
    return tl.maximum(tl.floor((index.to(tl.float32) - 0.5) / scale - 0.5).to(tl.int32) + 1, 0)


@triton.jit
def _weight(fine, index, scale, coarse_size, fine_size):
    """How much of a coarse pixel a fine one has."""
    low, high, along = between(fine, scale, coarse_size)
    weight = tl.where(low == index, 1 - along, 0.0) + tl.where(high == index, along, 0.0)
    return tl.where(fine < fine_size, weight, 0.0)


@triton.jit
def _shrink_kernel(
    g, out, pixels, fine_h, fine_w, coarse_h, coarse_w, channels, scale_y, scale_x,
    ROWS: tl.constexpr, ACROSS: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Maps with channels last."""
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    used = (channel < channels)[None, :]
    image = (pixel // (coarse_h * coarse_w)).to(tl.int64)
    row, column = pixel // coarse_w % coarse_h, pixel % coarse_w
    top, left = _first(row, scale_y), _first(column, scale_x)
    total = tl.zeros([PIXELS, CHANNELS], tl.float32)
    for i in range(ROWS):
        down = tl.where(pixel < pixels, _weight(top + i, row, scale_y, coarse_h, fine_h), 0.0)
        start = (image * fine_h + top + i) * fine_w
        for j in tl.static_range(ACROSS):
            weight = down * _weight(left + j, column, scale_x, coarse_w, fine_w)
            place = (start + left + j)[:, None] * channels + channel[None, :]
            value = tl.load(g + place, mask=(weight != 0)[:, None] & used, other=0.0)
            total += value.to(tl.float32) * weight[:, None]
    place = pixel[:, None].to(tl.int64) * channels + channel[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(pixel < pixels)[:, None] & used)


def _taps(coarse: int, fine: int) -> int:
    """How many fine pixels a coarse one can have gone into, along an axis."""
    return max(1, math.ceil(2 * fine / coarse))


def shrink(g: Tensor, size: tuple[int, int]) -> Tensor:
    """From the gradient (B, H, W, C) of a resized map, that of the map (B, *size, C)."""
    g = g.contiguous()
    batch, height, width, channels = g.shape
    low_h, low_w = size
    out = g.new_empty(batch, low_h, low_w, channels)
    block = min(256, triton.next_power_of_2(channels))
    pixels, count = max(1, _VALUES // block), batch * low_h * low_w
    _shrink_kernel[(triton.cdiv(count, pixels), triton.cdiv(channels, block))](
        g, out, count, height, width, low_h, low_w, channels, low_h / height, low_w / width,
        ROWS=_taps(low_h, height), ACROSS=_taps(low_w, width), PIXELS=pixels, CHANNELS=block, num_warps=_WARPS,
    )  # fmt: skip
    return out
