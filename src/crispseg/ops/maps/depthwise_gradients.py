"""Triton kernels of the depthwise 3x3 convolution's backward pass, cut into strips as the forward pass is.

With g the gradient before the activation (recomputed from the input; only that is saved):
  dx[i, j] = sum_ts w[t, s] g[i + 1 - t, j + 1 - s],    dw[t, s] = sum_ij x[i - 1 + t, j - 1 + s] g[i, j],
so one sweep over g gives both. Every strip leaves its part of dw and of the bias' gradient; a last kernel adds the
parts in a fixed order.

With stride 1 a thread works on four neighbouring columns, a to d. They share taps and sums, which leaves registers for
more threads, and are each other's neighbours: of g it loads six pixels instead of twelve. What a row's turn needs is
loaded in the turn before, as soon as the numbers it takes the place of are converted.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.hardware import multiprocessors
from crispseg.ops.common.tuples import with_one_more
from crispseg.ops.maps.depthwise_kernels import (
    Depthwise,
    DepthwiseTiles,
    aligned_strides,
    channel_block,
    channels_side_by_side,
    convolve,
    grid_of,
    pixels_contiguous,
    taps,
)

_PARTS = 10  # what a strip leaves of the weight's and the bias' gradients: nine taps and the bias
_RESIDENT = 4  # programs of the kernel of gradients that run on a multiprocessor at once
_BESIDES = 5  # rows that its strips cost beside their own: the two around them, the taps and the sums
_HEIGHTS = (64, 32, 16, 8, 4)  # of its strips


@triton.jit
def _inside(column, width, here, EXACT: tl.constexpr):
    """Which pixels lie in a row of this width; with EXACT, CHANNELS divides the channels and all of them are here."""
    inside = (column.to(tl.uint32) < tl.cast(width, tl.uint32))[:, None]  # column -1 becomes a large number
    return inside if EXACT else inside & here


@triton.jit
def _load(pointer, column, width, here, EXACT: tl.constexpr):
    """Pixels of one row, zeros outside."""
    return tl.load(pointer, mask=_inside(column, width, here, EXACT), other=0.0)


@triton.jit
def _load_row(
    pointer, column, width, here, PIXEL: tl.constexpr, EXACT: tl.constexpr, FIRST: tl.constexpr, END: tl.constexpr
):
    """Neighbouring columns, numbered from this one."""
    row = ()
    for i in tl.static_range(FIRST, END):
        row = with_one_more(row, _load(pointer + i * PIXEL, column + i, width, here, EXACT))
    return row


@triton.jit
def _store(pointer, value, column, width, here, EXACT: tl.constexpr):
    tl.store(pointer, value.to(pointer.dtype.element_ty), mask=_inside(column, width, here, EXACT))


@triton.jit
def _wide(row):
    """In float32."""
    wide = ()
    for i in tl.static_range(len(row)):
        wide = with_one_more(wide, row[i].to(tl.float32))
    return wide


@triton.jit
def _spread(totals, g, w_right, w_centre, w_left):
    """Four columns of a row of dx, plus what a row of g gives to them. Of g there are six columns, here and in `_meet`:
    these four between their neighbours to the left and right."""
    spread = ()
    for i in tl.static_range(4):
        total = totals[i] + g[i + 2] * w_right
        total = total + g[i + 1] * w_centre
        spread = with_one_more(spread, total + g[i] * w_left)
    return spread


@triton.jit
def _meet(sums, x, g):
    """The sums of a row of three taps, plus the products of four columns of x and those of g that each brings there."""
    met = ()
    for i in tl.static_range(3):
        total = sums[i] + x[0] * g[2 - i]
        for j in tl.static_range(1, 4):
            total = total + x[j] * g[2 - i + j]
        met = with_one_more(met, total)
    return met


@triton.jit
def _gradients_kernel(
    g, x, weight, dx, parts, height, width, out_height, out_width, batch_stride, row_stride, dx_batch, dx_row,
    channel_step, tap_step,
    C: tl.constexpr, PIXEL: tl.constexpr, ALIGN: tl.constexpr, DX_PIXEL: tl.constexpr, DX_ALIGN: tl.constexpr,
    STRIDE: tl.constexpr, RESIDUAL: tl.constexpr, PIXELS: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ROWS: tl.constexpr, EXACT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """dx, and this strip's part of the weight's and the bias' gradients. Strips are cut from g, which is contiguous:
    WIDTH threads of PIXELS columns each. For PIXEL and ALIGN, those of x and those of dx, see `_convolve_kernel`."""
    after_the_kernel_before(DEPENDENT)
    across = tl.cdiv(out_width, WIDTH * PIXELS)
    column = (tl.program_id(0) % across * WIDTH + tl.arange(0, WIDTH)) * PIXELS
    top = tl.program_id(0) // across * ROWS
    bottom = tl.minimum(top + ROWS, out_height)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    here = (channel < C)[None, :]
    image = tl.program_id(2).to(tl.int64)
    # A map may have more than 2**31 elements, a row has fewer.
    row_stride, dx_row = tl.cast(row_stride, tl.int64) * ALIGN, tl.cast(dx_row, tl.int64) * DX_ALIGN
    g_row = tl.cast(out_width * C, tl.int64)
    x += image * batch_stride * ALIGN
    dx += image * dx_batch * DX_ALIGN
    g += image * out_height * g_row
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = taps(weight, channel, C, channel_step, tap_step, WIDTH, True)
    zero = tl.zeros((WIDTH, CHANNELS), tl.float32)
    d0, d1, d2, d3, d4, d5, d6, d7, d8, d_bias = zero, zero, zero, zero, zero, zero, zero, zero, zero, zero

    if STRIDE == 1:
        # Row k of g meets rows k - 1, k and k + 1 of x, and is part of those rows of dx; the strip's neighbours above
        # and below give to its dx, but not to its sums.
        g_at = g + (top - 1) * g_row + (column[:, None] * C + channel[None, :])
        x_at = x + (top - 1) * row_stride + (column[:, None] * PIXEL + channel[None, :])
        dx_at = dx + (top - 1) * dx_row + (column[:, None] * DX_PIXEL + channel[None, :])
        before = tl.where(top > 0, width, 0)
        raw = _load_row(g_at, column, before, here, C, EXACT, -1, 5)
        upper = _load_row(x_at, column, before, here, PIXEL, EXACT, 0, 4)
        g_at += g_row
        x_at += row_stride
        next_raw = _load_row(g_at, column, width, here, C, EXACT, -1, 5)
        own = _load_row(x_at, column, width, here, PIXEL, EXACT, 0, 4)
        x_at += row_stride
        limit = tl.where(top + 1 < height, width, 0)
        low = _load_row(x_at, column, limit, here, PIXEL, EXACT, 0, 4)
        row = _wide(raw)
        nothing = (zero, zero, zero, zero)
        ready = nothing  # dx of row k - 1
        begun = _spread(nothing, row, w6, w7, w8)  # of row k
        upper, own = _wide(upper), _wide(own)
        raw = next_raw
        for k in range(top, bottom):
            row = _wide(raw)
            g_at += g_row
            limit = tl.where(k + 1 < height, width, 0)
            raw = _load_row(g_at, column, limit, here, C, EXACT, -1, 5)
            ready = _spread(ready, row, w0, w1, w2)
            limit = tl.where(k > top, width, 0)
            for i in tl.static_range(4):
                _store(dx_at + i * DX_PIXEL, ready[i], column + i, limit, here, EXACT)
            dx_at += dx_row
            if RESIDUAL:
                begun = (begun[0] + row[1], begun[1] + row[2], begun[2] + row[3], begun[3] + row[4])
            ready = _spread(begun, row, w3, w4, w5)
            begun = _spread(nothing, row, w6, w7, w8)
            d0, d1, d2 = _meet((d0, d1, d2), upper, row)
            upper = own
            d3, d4, d5 = _meet((d3, d4, d5), own, row)
            own = _wide(low)
            x_at += row_stride
            limit = tl.where(k + 2 < height, width, 0)
            low = _load_row(x_at, column, limit, here, PIXEL, EXACT, 0, 4)
            d6, d7, d8 = _meet((d6, d7, d8), own, row)
            d_bias = d_bias + ((row[1] + row[2]) + (row[3] + row[4]))
        ready = _spread(ready, _wide(raw), w0, w1, w2)
        for i in tl.static_range(4):
            _store(dx_at + i * DX_PIXEL, ready[i], column + i, width, here, EXACT)
    else:
        # A pixel of g with its right and lower neighbours makes two by two pixels of dx: at (even, even), (even,
        # odd), (odd, even) and (odd, odd) places.
        even = column * 2
        g_at = g + top * g_row + (column[:, None] * C + channel[None, :])
        x_at = x + top * 2 * row_stride + (even[:, None] * PIXEL + channel[None, :])
        dx_at = dx + top * 2 * dx_row + (even[:, None] * DX_PIXEL + channel[None, :])
        odd_row = tl.where(2 * top + 1 < height, width, 0)
        raw = _load_row(g_at, column, out_width, here, C, EXACT, 0, 2)
        g_at += g_row
        low = _load_row(g_at, column, tl.where(top + 1 < out_height, out_width, 0), here, C, EXACT, 0, 2)
        x_even = _load_row(x_at, even, width, here, PIXEL, EXACT, 0, 2)
        x_odd = _load_row(x_at + row_stride, even, odd_row, here, PIXEL, EXACT, 0, 2)
        centre, right = _wide(raw)
        for k in range(top, bottom):
            below, right_below = _wide(low)
            g_at += g_row
            low = _load_row(g_at, column, tl.where(k + 2 < out_height, out_width, 0), here, C, EXACT, 0, 2)
            x_at += row_stride * 2
            limit = tl.where(2 * k + 2 < height, width, 0)
            even_even, even_odd = _wide(x_even)
            x_even = _load_row(x_at, even, limit, here, PIXEL, EXACT, 0, 2)
            d4 += even_even * centre
            d3 += even_odd * right
            d5 += even_odd * centre
            limit = tl.where(2 * k + 3 < height, width, 0)
            odd_even, odd_odd = _wide(x_odd)
            x_odd = _load_row(x_at + row_stride, even, limit, here, PIXEL, EXACT, 0, 2)
            d1 += odd_even * below
            d7 += odd_even * centre
            d0 += odd_odd * right_below
            d2 += odd_odd * below
            d6 += odd_odd * right
            d8 += odd_odd * centre
            d_bias += centre
            _store(dx_at, centre * w4, even, width, here, EXACT)
            _store(dx_at + DX_PIXEL, right * w3 + centre * w5, even + 1, width, here, EXACT)
            lower = dx_at + dx_row
            _store(lower, below * w1 + centre * w7, even, odd_row, here, EXACT)
            total = right_below * w0 + below * w2
            total = total + right * w6
            total = total + centre * w8
            _store(lower + DX_PIXEL, total, even + 1, odd_row, here, EXACT)
            dx_at += dx_row * 2
            centre, right, odd_row = below, right_below, limit

    strip = image * tl.num_programs(0) + tl.program_id(0)
    where = parts + strip * 10 * C + channel
    sums = (d0, d1, d2, d3, d4, d5, d6, d7, d8, d_bias)
    for i in tl.static_range(len(sums)):
        tl.store(where + C * i, tl.sum(sums[i], axis=0), mask=channel < C)


@triton.jit
def _add_strips(
    parts, dw, db, strips, channels, STRIPS: tl.constexpr, CHANNELS: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    """Sum over strips of parts (strips, 10, channels) into dw (channels, 9) and db (channels,)."""
    after_the_kernel_before(DEPENDENT)
    part = tl.program_id(1)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    strip = tl.arange(0, STRIPS)
    total = tl.zeros((STRIPS, CHANNELS), tl.float32)
    for start in range(0, strips, STRIPS):
        offset = (strip + start).to(tl.int64)[:, None] * 10 * channels + part * channels + channel[None, :]
        mask = (strip + start < strips)[:, None] & (channel < channels)[None, :]
        total += tl.load(parts + offset, mask=mask, other=0.0)
    result = tl.sum(total, axis=0)
    if part < 9:
        tl.store(dw + channel * 9 + part, result.to(dw.dtype.element_ty), mask=channel < channels)
    elif db is not None:
        tl.store(db + channel, result.to(db.dtype.element_ty), mask=channel < channels)


def backward(
    gradient: Tensor,
    x: Tensor,
    asked: Depthwise,
    tiles: DepthwiseTiles | None = None,
    out: Tensor | None = None,
) -> list[Tensor]:
    """Gradients for x, weight and bias if there is one, each in its own dtype; `gradient` is that of `forward`'s
    result. That for x is written to `out` if given, which may be a view into a wider map."""
    x, weight, gradient = pixels_contiguous(x), channels_side_by_side(asked.weight), gradient.contiguous()
    g, activated, stride = gradient, asked.activation != "none", asked.stride
    if activated:
        g = torch.empty_like(gradient)
        convolve(x, asked._replace(weight=weight, residual=False), g, None, gradient)
    batch, out_height, out_width, channels = g.shape
    together = 4 if stride == 1 else 1  # columns of a thread
    tiles = tiles or _gradient_tiles(g, together)
    grid = grid_of(g, tiles)
    strips = grid[0] * batch
    dx = x.new_empty(x.shape) if out is None else out
    parts = torch.empty((strips, _PARTS, channels), dtype=torch.float32, device=x.device)
    (image, row, _), align = aligned_strides(x)
    (dx_image, dx_row, _), dx_align = aligned_strides(dx)
    _gradients_kernel[grid](
        g, x, weight, dx, parts, x.shape[1], x.shape[2], out_height, out_width, image, row, dx_image, dx_row,
        weight.stride(0), weight.stride(3), C=channels, PIXEL=x.stride(2), ALIGN=align, DX_PIXEL=dx.stride(2),
        DX_ALIGN=dx_align, STRIDE=stride, RESIDUAL=asked.residual and not activated, PIXELS=together,
        WIDTH=tiles.width // together, CHANNELS=tiles.channels, ROWS=tiles.rows,
        EXACT=channels % tiles.channels == 0, num_warps=tiles.warps, **launch_options(x.device),
    )  # fmt: skip
    dw = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    db = None if asked.bias is None else torch.empty_like(asked.bias)
    _add_strips[(triton.cdiv(channels, 16), _PARTS)](
        parts, dw, db, strips, channels, STRIPS=128, CHANNELS=16, num_warps=4, **launch_options(x.device)
    )
    dx = dx.add_(gradient) if asked.residual and activated else dx
    return [dx, dw] if db is None else [dx, dw, db]


def _gradient_tiles(g: Tensor, together: int) -> DepthwiseTiles:
    """Strips of the height that takes the fewest turns, by the rows of each."""
    channels = channel_block(g.shape[3])
    width = min((1024 if together > 1 else 512) // channels, triton.next_power_of_2(max(g.shape[2], together)))
    places = _RESIDENT * multiprocessors(g.device)

    def rows_in_turn(tiles: DepthwiseTiles) -> int:
        return triton.cdiv(math.prod(grid_of(g, tiles)), places) * (tiles.rows + _BESIDES)

    return min((DepthwiseTiles(width, channels, rows) for rows in _HEIGHTS), key=rows_in_turn)
