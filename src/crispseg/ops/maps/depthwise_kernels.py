"""Triton kernels of the depthwise 3x3 convolution on channels-last maps; `depthwise.py` says what is computed.

A program makes a strip of a map: WIDTH pixels wide, ROWS high, CHANNELS deep. It walks down the strip and loads a row
once for all three outputs it is part of, ahead of its use: no load may pass the store of a finished row, as the
compiler cannot know that they never meet. A row's three shifted loads differ by one pixel and meet in the L1 cache.
Sums are kept in float32.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

from crispseg.ops.common.dependent_launch import after_the_kernel_before
from crispseg.ops.common.rounding import INTERPRETED, widened


@triton.jit
def _sigmoid(x):
    """1 / (1 + exp(-x)) to float32's precision but for numbers below the normal ones: a third of the instructions."""
    if INTERPRETED:
        return tl.sigmoid(x)
    return tl.inline_asm_elementwise(
        "{.reg .f32 e; mul.f32 e, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 e, e; add.f32 e, e, 0f3F800000;"
        "rcp.approx.ftz.f32 $0, e;}",
        "=f,f", [x], tl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def pack(weight, out, channels, channel_step, tap_step, CHANNELS: tl.constexpr, EARLY: tl.constexpr):
    """A weight (channels, 9) as (9, channels): neighbouring threads then load neighbouring numbers in `tap`."""
    after_the_kernel_before(EARLY)
    taps, channel = tl.arange(0, 16)[:, None], tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    mask = (taps < 9) & (channel < channels)
    found = tl.load(weight + channel * channel_step + taps * tap_step, mask=mask)
    tl.store(out + taps * channels + channel, found, mask=mask)


@triton.jit
def tap(pointer, tap, channel, channels, channel_step, tap_step, WIDTH: tl.constexpr, SPREAD: tl.constexpr):
    """One number per channel, float32; with SPREAD (WIDTH, channels), which every thread loads for its own pixel: the
    compiler would have some threads load them and hand them to the others through shared memory."""
    channel = tl.broadcast_to(channel[None, :], (WIDTH, channel.shape[0])) if SPREAD else channel[None, :]
    return widened(tl.load(pointer + tap * tap_step + channel * channel_step, mask=channel < channels, other=0.0))


@triton.jit
def _within(mask, row, height):
    """The mask, for a row inside the map. (The interpreter makes no mask of a tensor and a number.)"""
    rows = tl.zeros(mask.shape, tl.int32) + row
    return mask & (rows >= 0) & (rows < height)


@triton.jit
def _row3(start, offset, row, height, left, centre, right, pixel_stride):
    """A row's pixels with their left and right neighbours; each where its mask says it is inside the map."""
    return (
        tl.load(start + offset - pixel_stride, mask=_within(left, row, height), other=0.0),
        tl.load(start + offset, mask=_within(centre, row, height), other=0.0),
        tl.load(start + offset + pixel_stride, mask=_within(right, row, height), other=0.0),
    )


@triton.jit
def _finish(
    total, x, incoming, out, normed, gamma, beta, eps, row, height, mask, offset, channel, channels, row_stride,
    ACTIVATION: tl.constexpr, RESIDUAL: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """What follows the sum: activation or its derivative, residual, LayerNorm; then the store."""
    if incoming is not None:
        incoming = widened(incoming)
        if ACTIVATION == "silu":
            gate = _sigmoid(total)
            total = incoming * gate * (1.0 + total * (1.0 - gate))
        else:
            total = tl.where(total > 0, incoming, 0.0)
    elif ACTIVATION == "silu":
        total = total * _sigmoid(total)
    elif ACTIVATION == "relu":
        total = tl.maximum(total, 0.0)
    if RESIDUAL:
        total += x
    mask, place = _within(mask, row, height), row.to(tl.int64) * row_stride + offset
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)
    if normed is not None:
        centred = total - (tl.sum(total, 1) / channels)[:, None]  # channels beyond the last are zero here
        if not EXACT:
            centred = tl.where((channel < channels)[None, :], centred, 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred, 1) / channels + eps)
        tl.store(normed + place, (centred * scale[:, None] * gamma + beta).to(normed.dtype.element_ty), mask=mask)


@triton.jit
def convolve(
    x, weight, bias, gradient, out, normed, gamma, beta, eps,
    height, width, out_height, out_width, channels, batch_stride, row_stride, channel_step, tap_step,
    PIXEL: tl.constexpr, STRIDE: tl.constexpr, ACTIVATION: tl.constexpr, RESIDUAL: tl.constexpr, ALIGN: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, SPREAD: tl.constexpr, EXACT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The convolution and what follows it; with `gradient`, that gradient taken back through the activation; with
    `normed`, its LayerNorm over channels, which are then all here. PIXEL is the distance of neighbours in memory; EXACT
    says that CHANNELS divides the map's channels."""
    after_the_kernel_before(EARLY)
    across = tl.cdiv(out_width, WIDTH)
    column = tl.program_id(0) % across * WIDTH + tl.arange(0, WIDTH)
    top = tl.program_id(0) // across * ROWS
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    image = tl.program_id(2).to(tl.int64)
    # Strides come divided by a power of two; multiplied by it here, the compiler knows how wide it may load.
    row_stride = tl.cast(row_stride, tl.int64) * ALIGN  # a map may have more than 2**31 elements, a row has fewer
    middle = column * STRIDE
    left, centre, right = (middle > 0) & (middle <= width), middle < width, middle < width - 1
    left, centre, right, out_mask = left[:, None], centre[:, None], right[:, None], (column < out_width)[:, None]
    if not EXACT:
        here = (channel < channels)[None, :]
        left, centre, right, out_mask = left & here, centre & here, right & here, out_mask & here
    offset = middle[:, None] * PIXEL + channel[None, :]
    start = x + image * batch_stride * ALIGN + (top * STRIDE - 1) * row_stride
    raw_l, raw_c, raw_r = _row3(start, offset, top * STRIDE - 1, height, left, centre, right, PIXEL)
    written = image * out_height * out_width * channels
    out += written
    out_row = out_width * channels
    out_offset = column[:, None] * channels + channel[None, :]
    if gradient is not None:
        gradient += written
    if normed is not None:
        normed += written
        gamma = tap(gamma, 0, channel, channels, 1, 0, WIDTH, SPREAD)
        beta = tap(beta, 0, channel, channels, 1, 0, WIDTH, SPREAD)
    zero = tl.zeros((WIDTH, CHANNELS), tl.float32)
    first = zero  # what a sum begins with
    if bias is not None:
        first += tap(bias, 0, channel, channels, 1, 0, WIDTH, SPREAD)
    w0 = tap(weight, 0, channel, channels, channel_step, tap_step, WIDTH, SPREAD)
    w1 = tap(weight, 1, channel, channels, channel_step, tap_step, WIDTH, SPREAD)
    w2 = tap(weight, 2, channel, channels, channel_step, tap_step, WIDTH, SPREAD)
    w3 = tap(weight, 3, channel, channels, channel_step, tap_step, WIDTH, SPREAD)
    w4 = tap(weight, 4, channel, channels, channel_step, tap_step, WIDTH, SPREAD)
    w5 = tap(weight, 5, channel, channels, channel_step, tap_step, WIDTH, SPREAD)
    w6 = tap(weight, 6, channel, channels, channel_step, tap_step, WIDTH, SPREAD)
    w7 = tap(weight, 7, channel, channels, channel_step, tap_step, WIDTH, SPREAD)
    w8 = tap(weight, 8, channel, channels, channel_step, tap_step, WIDTH, SPREAD)

    ready = zero  # the output row that the current input row completes
    begun = zero  # the one after it (stride 1)
    own = zero  # pixels of the input row before, for the residual (stride 1)
    incoming = None  # gradient of the row that comes next
    for k in tl.static_range(STRIDE * ROWS + 3 - STRIDE):
        start += row_stride
        next_l, next_c, next_r = raw_l, raw_c, raw_r
        if k < STRIDE * ROWS + 2 - STRIDE:
            next_l, next_c, next_r = _row3(start, offset, top * STRIDE + k, height, left, centre, right, PIXEL)
        finished = incoming
        if gradient is not None and k > 0 and k < STRIDE * ROWS + 2 - STRIDE and (k + 1) % STRIDE == 0:
            row = top + (k - 1) // STRIDE
            place = tl.cast(row, tl.int64) * out_row + out_offset
            incoming = tl.load(gradient + place, mask=_within(out_mask, row, out_height), other=0.0)
        at_l, at_c, at_r = widened(raw_l), widened(raw_c), widened(raw_r)
        if k >= 2 and k % STRIDE == 0:
            ready = ready + at_l * w6
            ready = ready + at_c * w7
            ready = ready + at_r * w8
            _finish(
                ready, own, finished, out, normed, gamma, beta, eps, top + (k - 2) // STRIDE, out_height, out_mask,
                out_offset, channel, channels, out_row, ACTIVATION, RESIDUAL, EXACT,
            )  # fmt: skip
        if STRIDE == 1:
            ready = begun + at_l * w3
            ready = ready + at_c * w4
            ready = ready + at_r * w5
            begun = first + at_l * w0
            begun = begun + at_c * w1
            begun = begun + at_r * w2
            own = at_c
        elif k % 2 == 0:
            ready = first + at_l * w0
            ready = ready + at_c * w1
            ready = ready + at_r * w2
        else:
            ready = ready + at_l * w3
            ready = ready + at_c * w4
            ready = ready + at_r * w5
        raw_l, raw_c, raw_r = next_l, next_c, next_r
