"""Triton kernels of `resizing.py`.

For the gradient each coarse pixel gathers from the fine ones that it went into: along an axis these are the fine pixels
whose centre lies less than one coarse pixel away, or beyond the last centre.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.custom import custom_op, differentiable
from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.maps import resizing

_VALUES, _WARPS = 2048, 4  # of a program


@triton.jit
def between(index, scale, size):
    """Where a finer index falls among `size` coarser ones: the two neighbours and the weight of the second."""
    place = tl.maximum((index.to(tl.float32) + 0.5) * scale - 0.5, 0.0)
    low = tl.minimum(place.to(tl.int32), size - 1)
    return low, tl.minimum(low + 1, size - 1), place - low.to(tl.float32)


@triton.jit
def interpolated(coarser, upper, lower, left, right, down, along, channel, channels, mask):
    """A map with channels last, between two pixels of each of two rows, which start at pixels `upper` and `lower`."""
    a = tl.load(coarser + (upper + left)[:, None].to(tl.int64) * channels + channel[None, :], mask=mask, other=0.0)
    b = tl.load(coarser + (upper + right)[:, None].to(tl.int64) * channels + channel[None, :], mask=mask, other=0.0)
    c = tl.load(coarser + (lower + left)[:, None].to(tl.int64) * channels + channel[None, :], mask=mask, other=0.0)
    d = tl.load(coarser + (lower + right)[:, None].to(tl.int64) * channels + channel[None, :], mask=mask, other=0.0)
    along, down = along[:, None], down[:, None]
    above = a.to(tl.float32) * (1 - along) + b.to(tl.float32) * along
    below = c.to(tl.float32) * (1 - along) + d.to(tl.float32) * along
    return above * (1 - down) + below * down


@triton.jit
def _resize_add_kernel(
    finer, coarser, out, pixels, fine_h, fine_w, coarse_h, coarse_w, channels, scale_y, scale_x,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (pixel[:, None] < pixels) & (channel[None, :] < channels)
    image = (pixel // (fine_h * fine_w)).to(tl.int64)
    top, bottom, down = between(pixel // fine_w % fine_h, scale_y, coarse_h)
    left, right, along = between(pixel % fine_w, scale_x, coarse_w)
    upper, lower = (image * coarse_h + top) * coarse_w, (image * coarse_h + bottom) * coarse_w
    result = interpolated(coarser, upper, lower, left, right, down, along, channel, channels, inside)
    places = pixel[:, None].to(tl.int64) * channels + channel[None, :]
    result += tl.load(finer + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + places, result, mask=inside)


@resizing.resize_add.kernel
def resize_add(finer: Tensor, coarser: Tensor) -> Tensor:
    finer, coarser = finer.contiguous(), coarser.contiguous()
    batch, height, width, channels = finer.shape
    coarse_h, coarse_w = coarser.shape[1:3]
    out = torch.empty_like(finer)
    block = min(128, triton.next_power_of_2(channels))
    pixels = max(1, _VALUES // block)
    count = batch * height * width
    _resize_add_kernel[(triton.cdiv(count, pixels), triton.cdiv(channels, block))](
        finer, coarser, out, count, height, width, coarse_h, coarse_w, channels, coarse_h / height, coarse_w / width,
        PIXELS=pixels, CHANNELS=block, num_warps=_WARPS,
    )  # fmt: skip
    return out


@triton.jit
def _upsample_kernel(
    scores, out, low_h, low_w, height, width, scale_y, scale_x, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    """All rows of the result that lie between two rows of the scores: these are resized along x once."""
    after_the_kernel_before(DEPENDENT)
    low, plane = tl.program_id(1), tl.program_id(2).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    left, right, along = between(column, scale_x, low_w)
    scores += plane * low_h * low_w + low * low_w
    out += plane * height * width
    below = scores + tl.where(low + 1 < low_h, low_w, 0)
    top = tl.load(scores + left) * (1 - along) + tl.load(scores + right) * along
    bottom = tl.load(below + left) * (1 - along) + tl.load(below + right) * along
    # One row more on either side than arithmetic without rounding would give; `between` itself decides.
    first = tl.maximum(((low + 0.5) / scale_y - 1.5).to(tl.int32), 0) * (low > 0).to(tl.int32)
    last = tl.minimum(((low + 1.5) / scale_y + 1.5).to(tl.int32), height)
    for i in range(last - first):
        row = first + i
        own, _, down = between(row, scale_y, low_h)
        end = width * (own == low).to(tl.int32)
        tl.store(out + row.to(tl.int64) * width + column, top * (1 - down) + bottom * down, mask=column < end)


@resizing.upsample.kernel
def upsample(scores: Tensor, size: tuple[int, int]) -> Tensor:
    (batch, classes, low_h, low_w), (height, width) = scores.shape, size
    out = scores.new_empty(batch, classes, height, width)
    columns = min(512, triton.next_power_of_2(width))
    with torch.cuda.device_of(scores):
        _upsample_kernel[(triton.cdiv(width, columns), low_h, batch * classes)](
            scores, out, low_h, low_w, height, width, low_h / height, low_w / width,
            COLUMNS=columns, num_warps=2, **launch_options(scores.device),
        )  # fmt: skip
    return out


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


@custom_op("resize_backward", like=lambda g, height, width: g.new_empty(g.shape[0], height, width, g.shape[3]))
def _shrink(g: Tensor, low_h: int, low_w: int) -> Tensor:
    """From the gradient (B, H, W, C) of a resized map, that of the map (B, low_h, low_w, C)."""
    g = g.contiguous()
    batch, height, width, channels = g.shape
    out = g.new_empty(batch, low_h, low_w, channels)
    block = min(256, triton.next_power_of_2(channels))
    pixels, count = max(1, _VALUES // block), batch * low_h * low_w
    _shrink_kernel[(triton.cdiv(count, pixels), triton.cdiv(channels, block))](
        g, out, count, height, width, low_h, low_w, channels, low_h / height, low_w / width,
        ROWS=_taps(low_h, height), ACROSS=_taps(low_w, width), PIXELS=pixels, CHANNELS=block, num_warps=_WARPS,
    )  # fmt: skip
    return out


@resizing.add_resized.kernel
def add_resized(finer: Tensor, coarser: Tensor) -> Tensor:
    """Of maps with channels first."""
    return _forward(coarser.permute(0, 2, 3, 1), finer.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@custom_op("resize_add", like=lambda x, finer: x.new_empty(finer.shape))
def _forward(x: Tensor, finer: Tensor) -> Tensor:
    """x (B, h, w, C) resized, plus `finer` (B, H, W, C)."""
    return resize_add(finer, x)


differentiable(
    _forward,
    lambda g, height, width: (_shrink(g, height, width), g),
    resizing.add_resized,
    remember=lambda inputs, outputs: inputs[0].shape[1:3],
    plain=resizing.plain_gradients,
)
