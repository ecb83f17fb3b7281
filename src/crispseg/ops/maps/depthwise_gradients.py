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
from crispseg.ops.maps.depthwise_kernels import (
    DepthwiseTiles,
    aligned_strides,
    channel_block,
    channels_side_by_side,
    convolve,
    grid_of,
    pixels_contiguous,
    tap,
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
def _load2(pointer, column, width, here, PIXEL: tl.constexpr, EXACT: tl.constexpr):
    """Two neighbouring columns, of which this is the first."""
    return (
        _load(pointer, column, width, here, EXACT),
        _load(pointer + PIXEL, column + 1, width, here, EXACT),
    )  # fmt: skip


@triton.jit
def _load4(pointer, column, width, here, PIXEL: tl.constexpr, EXACT: tl.constexpr):
    """Four neighbouring columns, of which this is the first."""
    return (
        _load(pointer, column, width, here, EXACT),
        _load(pointer + PIXEL, column + 1, width, here, EXACT),
        _load(pointer + 2 * PIXEL, column + 2, width, here, EXACT),
        _load(pointer + 3 * PIXEL, column + 3, width, here, EXACT),
    )


@triton.jit
def _load6(pointer, column, width, here, PIXEL: tl.constexpr, EXACT: tl.constexpr):
    """Four neighbouring columns, between those to their left and right."""
    return (
        _load(pointer - PIXEL, column - 1, width, here, EXACT),
        _load(pointer, column, width, here, EXACT),
        _load(pointer + PIXEL, column + 1, width, here, EXACT),
        _load(pointer + 2 * PIXEL, column + 2, width, here, EXACT),
        _load(pointer + 3 * PIXEL, column + 3, width, here, EXACT),
        _load(pointer + 4 * PIXEL, column + 4, width, here, EXACT),
    )


@triton.jit
def _wide4(a, b, c, d):
    return a.to(tl.float32), b.to(tl.float32), c.to(tl.float32), d.to(tl.float32)


@triton.jit
def _spread(total, left, centre, right, w_right, w_centre, w_left):
    """A row of dx, plus what a row of g gives to it."""
    total = total + right * w_right
    total = total + centre * w_centre
    return total + left * w_left


@triton.jit
def _meet(total, xa, xb, xc, xd, ga, gb, gc, gd):
    """A tap's sum, plus the products of four pixels."""
    total = total + xa * ga
    total = total + xb * gb
    total = total + xc * gc
    return total + xd * gd


@triton.jit
def _store(pointer, value, column, width, here, EXACT: tl.constexpr):
    tl.store(pointer, value.to(pointer.dtype.element_ty), mask=_inside(column, width, here, EXACT))


@triton.jit
def _store4(pointer, a, b, c, d, column, width, here, PIXEL: tl.constexpr, EXACT: tl.constexpr):
    _store(pointer, a, column, width, here, EXACT)
    _store(pointer + PIXEL, b, column + 1, width, here, EXACT)
    _store(pointer + 2 * PIXEL, c, column + 2, width, here, EXACT)
    _store(pointer + 3 * PIXEL, d, column + 3, width, here, EXACT)


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
    w0 = tap(weight, 0, channel, C, channel_step, tap_step, WIDTH, True)
    w1 = tap(weight, 1, channel, C, channel_step, tap_step, WIDTH, True)
    w2 = tap(weight, 2, channel, C, channel_step, tap_step, WIDTH, True)
    w3 = tap(weight, 3, channel, C, channel_step, tap_step, WIDTH, True)
    w4 = tap(weight, 4, channel, C, channel_step, tap_step, WIDTH, True)
    w5 = tap(weight, 5, channel, C, channel_step, tap_step, WIDTH, True)
    w6 = tap(weight, 6, channel, C, channel_step, tap_step, WIDTH, True)
    w7 = tap(weight, 7, channel, C, channel_step, tap_step, WIDTH, True)
    w8 = tap(weight, 8, channel, C, channel_step, tap_step, WIDTH, True)
    zero = tl.zeros((WIDTH, CHANNELS), tl.float32)
    d0, d1, d2, d3, d4, d5, d6, d7, d8, d_bias = zero, zero, zero, zero, zero, zero, zero, zero, zero, zero

    if STRIDE == 1:
        # Row k of g meets rows k - 1, k and k + 1 of x, and is part of those rows of dx; the strip's neighbours above
        # and below give to its dx, but not to its sums.
        g_at = g + (top - 1) * g_row + (column[:, None] * C + channel[None, :])
        x_at = x + (top - 1) * row_stride + (column[:, None] * PIXEL + channel[None, :])
        dx_at = dx + (top - 1) * dx_row + (column[:, None] * DX_PIXEL + channel[None, :])
        before = tl.where(top > 0, width, 0)
        raw_l, raw_a, raw_b, raw_c, raw_d, raw_r = _load6(g_at, column, before, here, C, EXACT)
        upper_a, upper_b, upper_c, upper_d = _load4(x_at, column, before, here, PIXEL, EXACT)
        g_at += g_row
        x_at += row_stride
        next_l, next_a, next_b, next_c, next_d, next_r = _load6(g_at, column, width, here, C, EXACT)
        own_a, own_b, own_c, own_d = _load4(x_at, column, width, here, PIXEL, EXACT)
        x_at += row_stride
        limit = tl.where(top + 1 < height, width, 0)
        low_a, low_b, low_c, low_d = _load4(x_at, column, limit, here, PIXEL, EXACT)
        a, b, c, d = _wide4(raw_a, raw_b, raw_c, raw_d)
        left, right = raw_l.to(tl.float32), raw_r.to(tl.float32)
        ready_a, ready_b, ready_c, ready_d = zero, zero, zero, zero  # dx of row k - 1
        begun_a = _spread(zero, left, a, b, w6, w7, w8)  # of row k
        begun_b = _spread(zero, a, b, c, w6, w7, w8)
        begun_c = _spread(zero, b, c, d, w6, w7, w8)
        begun_d = _spread(zero, c, d, right, w6, w7, w8)
        upper_a, upper_b, upper_c, upper_d = _wide4(upper_a, upper_b, upper_c, upper_d)
        own_a, own_b, own_c, own_d = _wide4(own_a, own_b, own_c, own_d)
        raw_l, raw_a, raw_b, raw_c, raw_d, raw_r = next_l, next_a, next_b, next_c, next_d, next_r
        for k in range(top, bottom):
            a, b, c, d = _wide4(raw_a, raw_b, raw_c, raw_d)
            left, right = raw_l.to(tl.float32), raw_r.to(tl.float32)
            g_at += g_row
            limit = tl.where(k + 1 < height, width, 0)
            raw_l, raw_a, raw_b, raw_c, raw_d, raw_r = _load6(g_at, column, limit, here, C, EXACT)
            ready_a = _spread(ready_a, left, a, b, w0, w1, w2)
            ready_b = _spread(ready_b, a, b, c, w0, w1, w2)
            ready_c = _spread(ready_c, b, c, d, w0, w1, w2)
            ready_d = _spread(ready_d, c, d, right, w0, w1, w2)
            limit = tl.where(k > top, width, 0)
            _store4(dx_at, ready_a, ready_b, ready_c, ready_d, column, limit, here, DX_PIXEL, EXACT)
            dx_at += dx_row
            if RESIDUAL:
                begun_a, begun_b, begun_c, begun_d = begun_a + a, begun_b + b, begun_c + c, begun_d + d
            ready_a = _spread(begun_a, left, a, b, w3, w4, w5)
            ready_b = _spread(begun_b, a, b, c, w3, w4, w5)
            ready_c = _spread(begun_c, b, c, d, w3, w4, w5)
            ready_d = _spread(begun_d, c, d, right, w3, w4, w5)
            begun_a = _spread(zero, left, a, b, w6, w7, w8)
            begun_b = _spread(zero, a, b, c, w6, w7, w8)
            begun_c = _spread(zero, b, c, d, w6, w7, w8)
            begun_d = _spread(zero, c, d, right, w6, w7, w8)
            d0 = _meet(d0, upper_a, upper_b, upper_c, upper_d, b, c, d, right)
            d1 = _meet(d1, upper_a, upper_b, upper_c, upper_d, a, b, c, d)
            d2 = _meet(d2, upper_a, upper_b, upper_c, upper_d, left, a, b, c)
            upper_a, upper_b, upper_c, upper_d = own_a, own_b, own_c, own_d
            d3 = _meet(d3, own_a, own_b, own_c, own_d, b, c, d, right)
            d4 = _meet(d4, own_a, own_b, own_c, own_d, a, b, c, d)
            d5 = _meet(d5, own_a, own_b, own_c, own_d, left, a, b, c)
            own_a, own_b, own_c, own_d = _wide4(low_a, low_b, low_c, low_d)
            x_at += row_stride
            limit = tl.where(k + 2 < height, width, 0)
            low_a, low_b, low_c, low_d = _load4(x_at, column, limit, here, PIXEL, EXACT)
            d6 = _meet(d6, own_a, own_b, own_c, own_d, b, c, d, right)
            d7 = _meet(d7, own_a, own_b, own_c, own_d, a, b, c, d)
            d8 = _meet(d8, own_a, own_b, own_c, own_d, left, a, b, c)
            d_bias = d_bias + ((a + b) + (c + d))
        a, b, c, d = _wide4(raw_a, raw_b, raw_c, raw_d)
        left, right = raw_l.to(tl.float32), raw_r.to(tl.float32)
        ready_a = _spread(ready_a, left, a, b, w0, w1, w2)
        ready_b = _spread(ready_b, a, b, c, w0, w1, w2)
        ready_c = _spread(ready_c, b, c, d, w0, w1, w2)
        ready_d = _spread(ready_d, c, d, right, w0, w1, w2)
        _store4(dx_at, ready_a, ready_b, ready_c, ready_d, column, width, here, DX_PIXEL, EXACT)
    else:
        # A pixel of g with its right and lower neighbours makes two by two pixels of dx: at (even, even), (even,
        # odd), (odd, even) and (odd, odd) places.
        even = column * 2
        g_at = g + top * g_row + (column[:, None] * C + channel[None, :])
        x_at = x + top * 2 * row_stride + (even[:, None] * PIXEL + channel[None, :])
        dx_at = dx + top * 2 * dx_row + (even[:, None] * DX_PIXEL + channel[None, :])
        odd_row = tl.where(2 * top + 1 < height, width, 0)
        raw_c, raw_r = _load2(g_at, column, out_width, here, C, EXACT)
        g_at += g_row
        low_c, low_r = _load2(g_at, column, tl.where(top + 1 < out_height, out_width, 0), here, C, EXACT)
        x_ee, x_eo = _load2(x_at, even, width, here, PIXEL, EXACT)
        x_oe, x_oo = _load2(x_at + row_stride, even, odd_row, here, PIXEL, EXACT)
        centre, right = raw_c.to(tl.float32), raw_r.to(tl.float32)
        for k in range(top, bottom):
            below, right_below = low_c.to(tl.float32), low_r.to(tl.float32)
            g_at += g_row
            low_c, low_r = _load2(g_at, column, tl.where(k + 2 < out_height, out_width, 0), here, C, EXACT)
            x_at += row_stride * 2
            limit = tl.where(2 * k + 2 < height, width, 0)
            even_even, even_odd = x_ee.to(tl.float32), x_eo.to(tl.float32)
            x_ee, x_eo = _load2(x_at, even, limit, here, PIXEL, EXACT)
            d4 += even_even * centre
            d3 += even_odd * right
            d5 += even_odd * centre
            limit = tl.where(2 * k + 3 < height, width, 0)
            odd_even, odd_odd = x_oe.to(tl.float32), x_oo.to(tl.float32)
            x_oe, x_oo = _load2(x_at + row_stride, even, limit, here, PIXEL, EXACT)
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
    inside = channel < C
    tl.store(where, tl.sum(d0, axis=0), mask=inside)
    tl.store(where + C, tl.sum(d1, axis=0), mask=inside)
    tl.store(where + C * 2, tl.sum(d2, axis=0), mask=inside)
    tl.store(where + C * 3, tl.sum(d3, axis=0), mask=inside)
    tl.store(where + C * 4, tl.sum(d4, axis=0), mask=inside)
    tl.store(where + C * 5, tl.sum(d5, axis=0), mask=inside)
    tl.store(where + C * 6, tl.sum(d6, axis=0), mask=inside)
    tl.store(where + C * 7, tl.sum(d7, axis=0), mask=inside)
    tl.store(where + C * 8, tl.sum(d8, axis=0), mask=inside)
    tl.store(where + C * 9, tl.sum(d_bias, axis=0), mask=inside)


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
    weight: Tensor,
    bias: Tensor | None,
    residual: bool,
    activation: str,
    stride: int,
    tiles: DepthwiseTiles | None = None,
    out: Tensor | None = None,
) -> list[Tensor]:
    """Gradients for x, weight and bias if there is one, each in its own dtype; `gradient` is that of `forward`'s
    result. That for x is written to `out` if given, which may be a view into a wider map."""
    x, weight, gradient = pixels_contiguous(x), channels_side_by_side(weight), gradient.contiguous()
    g = gradient
    if activation != "none":
        g = torch.empty_like(gradient)
        convolve(x, weight, bias, gradient, g, False, activation, stride, None)
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
        DX_ALIGN=dx_align, STRIDE=stride, RESIDUAL=residual and activation == "none", PIXELS=together,
        WIDTH=tiles.width // together, CHANNELS=tiles.channels, ROWS=tiles.rows,
        EXACT=channels % tiles.channels == 0, num_warps=tiles.warps, **launch_options(x.device),
    )  # fmt: skip
    dw = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    db = None if bias is None else torch.empty_like(bias)
    _add_strips[(triton.cdiv(channels, 16), _PARTS)](
        parts, dw, db, strips, channels, STRIPS=128, CHANNELS=16, num_warps=4, **launch_options(x.device)
    )
    dx = dx.add_(gradient) if residual and activation != "none" else dx
    return [dx, dw] if db is None else [dx, dw, db]


def _gradient_tiles(g: Tensor, together: int) -> DepthwiseTiles:
    """Strips of the height that takes the fewest turns, by the rows of each."""
    channels = channel_block(g.shape[3])
    width = min((1024 if together > 1 else 512) // channels, triton.next_power_of_2(max(g.shape[2], together)))
    places = _RESIDENT * multiprocessors(g.device)

    def rows_in_turn(tiles: DepthwiseTiles) -> int:
        return triton.cdiv(math.prod(grid_of(g, tiles)), places) * (tiles.rows + _BESIDES)

    return min((DepthwiseTiles(width, channels, rows) for rows in _HEIGHTS), key=rows_in_turn)
