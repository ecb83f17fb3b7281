"""Triton kernels of `resizing.py`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options


@triton.jit
def between(index, scale, size):
    """Where a finer index falls among `size` coarser ones: the two neighbours and the weight of the second."""
    place = tl.maximum((index.to(tl.float32) + 0.5) * scale - 0.5, 0.0)
    low = tl.minimum(place.to(tl.int32), size - 1)
    return low, tl.minimum(low + 1, size - 1), place - low.to(tl.float32)


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

    a = tl.load(coarser + (upper + left)[:, None] * channels + channel[None, :], mask=inside, other=0.0)
    b = tl.load(coarser + (upper + right)[:, None] * channels + channel[None, :], mask=inside, other=0.0)
    c = tl.load(coarser + (lower + left)[:, None] * channels + channel[None, :], mask=inside, other=0.0)
    d = tl.load(coarser + (lower + right)[:, None] * channels + channel[None, :], mask=inside, other=0.0)
    along, down = along[:, None], down[:, None]
    above = a.to(tl.float32) * (1 - along) + b.to(tl.float32) * along
    below = c.to(tl.float32) * (1 - along) + d.to(tl.float32) * along
    places = pixel[:, None].to(tl.int64) * channels + channel[None, :]
    result = above * (1 - down) + below * down
    result += tl.load(finer + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + places, result, mask=inside)


def resize_add(finer: Tensor, coarser: Tensor) -> Tensor:
    finer, coarser = finer.contiguous(), coarser.contiguous()
    batch, height, width, channels = finer.shape
    coarse_h, coarse_w = coarser.shape[1:3]
    out = torch.empty_like(finer)
    block = min(128, triton.next_power_of_2(channels))
    pixels = max(1, 2048 // block)
    count = batch * height * width
    _resize_add_kernel[(triton.cdiv(count, pixels), triton.cdiv(channels, block))](
        finer, coarser, out, count, height, width, coarse_h, coarse_w, channels, coarse_h / height, coarse_w / width,
        PIXELS=pixels, CHANNELS=block, num_warps=4,
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
