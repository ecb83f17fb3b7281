"""Triton kernels of the depthwise 3x3 convolution on channels-last maps; `depthwise.py` says what is computed.

A program makes a strip of a map: WIDTH pixels wide, ROWS high, CHANNELS deep. It walks down the strip and loads a row
once for all three outputs it is part of, ahead of its use: no load may pass the store of a finished row, as the
compiler cannot know that they never meet. A row's three shifted loads differ by one pixel and meet in the L1 cache.
Sums are kept in float32.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.custom import custom_op, differentiable, gradients_of_first
from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.rounding import INTERPRETED, widened
from crispseg.ops.common.tuples import with_one_more
from crispseg.ops.maps import depthwise

_BUSY = 512  # programs below which a large GPU has idle processors; strips get shorter until there are as many
_HELD = 8  # channels that a thread loads at once: up to so many elements, it works on one pixel


class DepthwiseTiles(NamedTuple):
    """How the work is cut: pixels along a row, channels, rows of a strip; and the warps of a program."""

    width: int
    channels: int
    rows: int
    warps: int = 4


class Depthwise(NamedTuple):
    """A convolution as it is asked for, see `depthwise.depthwise3x3`."""

    weight: Tensor
    bias: Tensor | None = None
    residual: bool = False
    activation: str = "none"
    stride: int = 1


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
def _pack_kernel(weight, out, channels, channel_step, tap_step, CHANNELS: tl.constexpr, DEPENDENT: tl.constexpr):
    """A weight (channels, 9) as (9, channels): neighbouring threads then load neighbouring numbers in `tap`."""
    after_the_kernel_before(DEPENDENT)
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
def taps(weight, channel, channels, channel_step, tap_step, WIDTH: tl.constexpr, SPREAD: tl.constexpr):
    """All nine, row by row."""
    nine = ()
    for i in tl.static_range(9):
        nine = with_one_more(nine, tap(weight, i, channel, channels, channel_step, tap_step, WIDTH, SPREAD))
    return nine


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
def _add_row(total, row, w_left, w_centre, w_right):
    """A sum, plus a row of the window."""
    total = total + row[0] * w_left
    total = total + row[1] * w_centre
    return total + row[2] * w_right


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
def _convolve_kernel(
    x, weight, bias, gradient, out, normed, gamma, beta, eps,
    height, width, out_height, out_width, channels, batch_stride, row_stride, channel_step, tap_step,
    PIXEL: tl.constexpr, STRIDE: tl.constexpr, ACTIVATION: tl.constexpr, RESIDUAL: tl.constexpr, ALIGN: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, SPREAD: tl.constexpr, EXACT: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The convolution and what follows it; with `gradient`, that gradient taken back through the activation; with
    `normed`, its LayerNorm over channels, which are then all here. PIXEL is the distance of neighbours in memory; EXACT
    says that CHANNELS divides the map's channels."""
    after_the_kernel_before(DEPENDENT)
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
    raw = _row3(start, offset, top * STRIDE - 1, height, left, centre, right, PIXEL)
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
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = taps(weight, channel, channels, channel_step, tap_step, WIDTH, SPREAD)

    ready = zero  # the output row that the current input row completes
    begun = zero  # the one after it (stride 1)
    own = zero  # pixels of the input row before, for the residual (stride 1)
    incoming = None  # gradient of the row that comes next
    for k in tl.static_range(STRIDE * ROWS + 3 - STRIDE):
        start += row_stride
        next_raw = raw
        if k < STRIDE * ROWS + 2 - STRIDE:
            next_raw = _row3(start, offset, top * STRIDE + k, height, left, centre, right, PIXEL)
        finished = incoming
        if gradient is not None and k > 0 and k < STRIDE * ROWS + 2 - STRIDE and (k + 1) % STRIDE == 0:
            out_at = top + (k - 1) // STRIDE
            place = tl.cast(out_at, tl.int64) * out_row + out_offset
            incoming = tl.load(gradient + place, mask=_within(out_mask, out_at, out_height), other=0.0)
        row = (widened(raw[0]), widened(raw[1]), widened(raw[2]))
        if k >= 2 and k % STRIDE == 0:
            ready = _add_row(ready, row, w6, w7, w8)
            _finish(
                ready, own, finished, out, normed, gamma, beta, eps, top + (k - 2) // STRIDE, out_height, out_mask,
                out_offset, channel, channels, out_row, ACTIVATION, RESIDUAL, EXACT,
            )  # fmt: skip
        if STRIDE == 1:
            ready = _add_row(begun, row, w3, w4, w5)
            begun = _add_row(first, row, w0, w1, w2)
            own = row[1]
        elif k % 2 == 0:
            ready = _add_row(first, row, w0, w1, w2)
        else:
            ready = _add_row(ready, row, w3, w4, w5)
        raw = next_raw


def forward(x: Tensor, asked: Depthwise, tiles: DepthwiseTiles | None = None) -> Tensor:
    """act(conv(x) + bias) (+ x): (B, H, W, C) -> (B, H', W', C)."""
    x = pixels_contiguous(x)
    out = _halved(x, *asked)
    convolve(x, asked, out, tiles)
    return out


def forward_norm(
    x: Tensor, weight: Tensor, bias: Tensor, norm: tuple[Tensor, Tensor, float], tiles: DepthwiseTiles | None = None
) -> tuple[Tensor, Tensor]:
    """x + conv(x) + bias, and its LayerNorm with `norm` = (weight, bias, eps): all channels in one program."""
    x = pixels_contiguous(x)
    out, normed = x.new_empty(x.shape), x.new_empty(x.shape)
    if tiles is None:
        channels = triton.next_power_of_2(x.shape[-1])
        width = 4 if channels == 256 else max(1, 512 // channels)
        tiles = _with_rows(out, width, channels, (8, 4, 2, 1) if channels > 128 else (4, 2, 1))
    convolve(x, Depthwise(weight, bias, residual=True), out, tiles, norm=(normed, *norm))
    return out, normed


def convolve(
    x: Tensor,
    asked: Depthwise,
    out: Tensor,
    tiles: DepthwiseTiles | None,
    gradient: Tensor | None = None,
    norm: tuple[Tensor | None, Tensor | None, Tensor | None, float] = (None, None, None, 0.0),
) -> None:
    channels, weight = x.shape[-1], channels_side_by_side(asked.weight)
    if tiles is None:
        block = channel_block(channels)
        tiles = _with_rows(out, 512 // block, block, (8, 4, 2, 1) if gradient is None else (16, 8, 4, 2, 1))
    (image, row, _), align = aligned_strides(x)
    _convolve_kernel[grid_of(out, tiles)](
        x, weight, asked.bias, gradient, out, *norm, *x.shape[1:3], *out.shape[1:3], channels, image, row,
        weight.stride(0), weight.stride(3), PIXEL=x.stride(2), STRIDE=asked.stride, ACTIVATION=asked.activation,
        RESIDUAL=asked.residual, ALIGN=align, WIDTH=tiles.width, CHANNELS=tiles.channels, ROWS=tiles.rows,
        SPREAD=tiles.width * tiles.channels <= _HELD * 32 * tiles.warps,
        EXACT=channels % tiles.channels == 0, num_warps=tiles.warps, **launch_options(x.device),
    )  # fmt: skip


def channel_block(channels: int) -> int:
    return 64 if channels % 64 == 0 else min(32, triton.next_power_of_2(channels))


def _with_rows(out: Tensor, width: int, channels: int, choices: tuple[int, ...]) -> DepthwiseTiles:
    """The tallest strips that still keep the device busy; no wider than the map."""
    width = min(width, triton.next_power_of_2(out.shape[2]))
    for rows in choices:
        tiles = DepthwiseTiles(width, channels, rows)
        if math.prod(grid_of(out, tiles)) >= _BUSY:
            break
    return tiles


def grid_of(out: Tensor, tiles: DepthwiseTiles) -> tuple[int, int, int]:
    batch, height, width, channels = out.shape
    strips = triton.cdiv(height, tiles.rows) * triton.cdiv(width, tiles.width)
    return strips, triton.cdiv(channels, tiles.channels), batch


def pixels_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


def channels_side_by_side(weight: Tensor) -> Tensor:
    """A weight (C, 1, 3, 3) with its channels side by side in memory and its nine taps evenly spaced."""
    if weight.stride(0) == 1 and weight.stride(2) == 3 * weight.stride(3):
        return weight
    channels = weight.shape[0]
    taps, out = weight.reshape(channels, 9), weight.new_empty((9, channels))
    _pack_kernel[(triton.cdiv(channels, 64),)](
        taps, out, channels, *taps.stride(), CHANNELS=64, **launch_options(out.device)
    )
    return out.t().view(weight.shape)


def aligned_strides(x: Tensor) -> tuple[tuple[int, ...], int]:
    """Strides of image, row and pixel divided by their common power of two (16 at most), and that power."""
    align = math.gcd(16, *x.stride()[:3])
    return tuple(s // align for s in x.stride()[:3]), align


@depthwise.depthwise3x3.kernel
def depthwise3x3(x: Tensor, *given: Any, **options: Any) -> Tensor:
    asked = Depthwise(*given, **options)
    depthwise.check(asked.activation, asked.stride, asked.residual)
    return _forward(x, *asked)


def _halved(x: Tensor, *asked: Any) -> Tensor:
    (batch, height, width, channels), stride = x.shape, Depthwise(*asked).stride
    return x.new_empty(batch, triton.cdiv(height, stride), triton.cdiv(width, stride), channels)


@custom_op("depthwise3x3", like=_halved)
def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, residual: bool, activation: str, stride: int) -> Tensor:
    return forward(x, Depthwise(weight, bias, residual, activation, stride))


@custom_op("depthwise3x3_backward", like=gradients_of_first(3))
def _backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, residual: bool, activation: str, stride: int
) -> list[Tensor]:
    from crispseg.ops.maps import depthwise_gradients

    return depthwise_gradients.backward(gradient, x, Depthwise(weight, bias, residual, activation, stride))


differentiable(_forward, _backward, depthwise.depthwise3x3)
