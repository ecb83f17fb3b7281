"""Triton kernels of the depthwise 3x3 convolution's backward pass, cut into strips as the forward pass is.

With g the gradient before the activation (recomputed from the input; only that is saved):
  dx[i, j] = sum_ts w[t, s] g[i + 1 - t, j + 1 - s],    dw[t, s] = sum_ij x[i, j] g[i + 1 - t, j + 1 - s],
so one sweep over g gives both and needs each x once. Every strip leaves its part of dw and of the bias' gradient;
a last kernel adds the parts in a fixed order.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load(pointer, row, column, channel, height, width, channels, row_stride, pixel_stride):
    """Pixels of one row, (columns, channels); zeros outside the map."""
    inside = (column >= 0) & (column < tl.where((row >= 0) & (row < height), width, 0))
    start = pointer + row.to(tl.int64) * row_stride  # a map may have more than 2**31 elements, a row has fewer
    offset = column[:, None] * pixel_stride + channel[None, :]
    return tl.load(start + offset, mask=inside[:, None] & (channel < channels)[None, :], other=0.0)


@triton.jit
def _load3(pointer, row, column, channel, height, width, channels, row_stride, pixel_stride):
    """A row's pixels with their left and right neighbours."""
    left = _load(pointer, row, column - 1, channel, height, width, channels, row_stride, pixel_stride)
    centre = _load(pointer, row, column, channel, height, width, channels, row_stride, pixel_stride)
    right = _load(pointer, row, column + 1, channel, height, width, channels, row_stride, pixel_stride)
    return left, centre, right


@triton.jit
def _store(pointer, value, row, column, channel, first, height, width, channels):
    """Write pixels of one row of a contiguous map, if it is at or below the row `first`."""
    inside = column < tl.where((row >= first) & (row < height), width, 0)
    start = pointer + row.to(tl.int64) * width * channels
    offset = column[:, None] * channels + channel[None, :]
    value = value.to(pointer.dtype.element_ty)
    tl.store(start + offset, value, mask=inside[:, None] & (channel < channels)[None, :])


@triton.jit
def _vector(pointer, channel, channels, stride):
    """One number per channel, (1, channels) in float32."""
    return tl.load(pointer + channel * stride, mask=channel < channels, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _weights(pointer, channel, channels, channel_step, tap_step):
    """One row of the 3x3 weight."""
    left = _vector(pointer, channel, channels, channel_step)
    centre = _vector(pointer + tap_step, channel, channels, channel_step)
    right = _vector(pointer + tap_step * 2, channel, channels, channel_step)
    return left, centre, right


@triton.jit
def gradients(
    g, x, weight, dx, parts, height, width, out_height, out_width, channels,
    batch_stride, row_stride, pixel_stride, channel_step, tap_step,
    STRIDE: tl.constexpr, RESIDUAL: tl.constexpr, ALIGN: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dx, and this strip's part of the weight's and the bias' gradients. Strips are cut from g."""
    across = tl.cdiv(out_width, WIDTH)
    column = tl.program_id(0) % across * WIDTH + tl.arange(0, WIDTH)
    top = tl.program_id(0) // across * ROWS
    bottom = tl.minimum(top + ROWS, out_height)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    image = tl.program_id(2).to(tl.int64)
    row_stride, pixel_stride = row_stride * ALIGN, pixel_stride * ALIGN
    x += image * batch_stride * ALIGN
    g += image * out_height * out_width * channels
    dx += image * height * width * channels
    g_row = out_width * channels
    w0, w1, w2 = _weights(weight, channel, channels, channel_step, tap_step)
    w3, w4, w5 = _weights(weight + tap_step * 3, channel, channels, channel_step, tap_step)
    w6, w7, w8 = _weights(weight + tap_step * 6, channel, channels, channel_step, tap_step)
    zero = tl.zeros((WIDTH, CHANNELS), tl.float32)
    d0, d1, d2, d3, d4, d5, d6, d7, d8, d_bias = zero, zero, zero, zero, zero, zero, zero, zero, zero, zero

    if STRIDE == 1:
        # Row k of g meets rows k - 1, k and k + 1 of x, those of this strip only: each pair belongs to one strip.
        raw_l, raw_c, raw_r = _load3(g, top - 1, column, channel, out_height, out_width, channels, g_row, channels)
        below = _load(x, top, column, channel, bottom, width, channels, row_stride, pixel_stride)
        own, above = tl.zeros_like(below), tl.zeros_like(below)
        ready, begun = zero, zero  # dx of rows k - 1 and k
        for k in range(bottom - top + 2):
            row = top - 1 + k
            next_l, next_c, next_r = _load3(
                g, row + 1, column, channel, out_height, out_width, channels, g_row, channels
            )  # fmt: skip
            next_below = _load(x, row + 2, column, channel, bottom, width, channels, row_stride, pixel_stride)
            left, centre, right = raw_l.to(tl.float32), raw_c.to(tl.float32), raw_r.to(tl.float32)
            ready += right * w0 + centre * w1 + left * w2
            _store(dx, ready, row - 1, column, channel, top, bottom, width, channels)
            ready = begun + right * w3 + centre * w4 + left * w5
            begun = right * w6 + centre * w7 + left * w8
            if RESIDUAL:
                ready += centre
            pixel = above.to(tl.float32)
            d0 += pixel * right
            d1 += pixel * centre
            d2 += pixel * left
            pixel = own.to(tl.float32)
            d3 += pixel * right
            d4 += pixel * centre
            d5 += pixel * left
            pixel = below.to(tl.float32)
            d6 += pixel * right
            d7 += pixel * centre
            d8 += pixel * left
            d_bias += centre * tl.where((row >= top) & (row < bottom), 1.0, 0.0)
            above, own, below = own, below, next_below
            raw_l, raw_c, raw_r = next_l, next_c, next_r
    else:
        # A pixel of g with its right and lower neighbours makes two by two pixels of dx: at (even, even), (even,
        # odd), (odd, even) and (odd, odd) places.
        raw_c = _load(g, top, column, channel, out_height, out_width, channels, g_row, channels)
        raw_r = _load(g, top, column + 1, channel, out_height, out_width, channels, g_row, channels)
        even, odd = column * 2, column * 2 + 1
        for k in range(bottom - top):
            row = top + k
            low = _load(g, row + 1, column, channel, out_height, out_width, channels, g_row, channels)
            low_r = _load(g, row + 1, column + 1, channel, out_height, out_width, channels, g_row, channels)
            x_ee = _load(x, row * 2, even, channel, height, width, channels, row_stride, pixel_stride)
            x_eo = _load(x, row * 2, odd, channel, height, width, channels, row_stride, pixel_stride)
            x_oe = _load(x, row * 2 + 1, even, channel, height, width, channels, row_stride, pixel_stride)
            x_oo = _load(x, row * 2 + 1, odd, channel, height, width, channels, row_stride, pixel_stride)
            centre, right = raw_c.to(tl.float32), raw_r.to(tl.float32)
            below, right_below = low.to(tl.float32), low_r.to(tl.float32)
            _store(dx, centre * w4, row * 2, even, channel, 0, height, width, channels)
            _store(dx, right * w3 + centre * w5, row * 2, odd, channel, 0, height, width, channels)
            _store(dx, below * w1 + centre * w7, row * 2 + 1, even, channel, 0, height, width, channels)
            total = right_below * w0 + below * w2 + right * w6 + centre * w8
            _store(dx, total, row * 2 + 1, odd, channel, 0, height, width, channels)
            d4 += x_ee.to(tl.float32) * centre
            pixel = x_eo.to(tl.float32)
            d3 += pixel * right
            d5 += pixel * centre
            pixel = x_oe.to(tl.float32)
            d1 += pixel * below
            d7 += pixel * centre
            pixel = x_oo.to(tl.float32)
            d0 += pixel * right_below
            d2 += pixel * below
            d6 += pixel * right
            d8 += pixel * centre
            d_bias += centre
            raw_c, raw_r = low, low_r

    strip = image * tl.num_programs(0) + tl.program_id(0)
    where = parts + strip * 10 * channels + channel
    inside = channel < channels
    tl.store(where, tl.sum(d0, axis=0), mask=inside)
    tl.store(where + channels, tl.sum(d1, axis=0), mask=inside)
    tl.store(where + channels * 2, tl.sum(d2, axis=0), mask=inside)
    tl.store(where + channels * 3, tl.sum(d3, axis=0), mask=inside)
    tl.store(where + channels * 4, tl.sum(d4, axis=0), mask=inside)
    tl.store(where + channels * 5, tl.sum(d5, axis=0), mask=inside)
    tl.store(where + channels * 6, tl.sum(d6, axis=0), mask=inside)
    tl.store(where + channels * 7, tl.sum(d7, axis=0), mask=inside)
    tl.store(where + channels * 8, tl.sum(d8, axis=0), mask=inside)
    tl.store(where + channels * 9, tl.sum(d_bias, axis=0), mask=inside)


@triton.jit
def add_parts(parts, dw, db, strips, channels, STRIPS: tl.constexpr, CHANNELS: tl.constexpr):
    """Sum over strips of parts (strips, 10, channels) into dw (channels, 9) and db (channels,)."""
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
