"""Triton kernels of `normalize.py`. Means, variances and sums are float32.

Gradients are those of LayerNorm and of a product that follows it. With h = (x - mean) s, s = 1 / sqrt(variance + eps),
and g the gradient of n = weight h + bias (that of n * gate, times the gate), per row:

    dx = s (g weight - mean(g weight) - h mean(g weight h))    dweight = sum g h    dbias = sum g    dgate = g_out n

Statistics are made again from x. Every program leaves its part of dweight and dbias; a second kernel adds the parts in
a fixed order.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.column_sums import add_column_parts
from crispseg.ops.common.custom import custom_op, differentiable, gradients_of_first
from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.hardware import multiprocessors, padded
from crispseg.ops.common.norm import Norm
from crispseg.ops.common.rounding import multiply, widened
from crispseg.ops.maps import normalize
from crispseg.ops.maps.resizing_kernels import between, interpolated


class AddTiles(NamedTuple):
    """How `norm_relu_add` cuts its work: pixels and output channels of a program, and its warps."""

    pixels: int
    channels: int
    warps: int


class NormGradientTiles(NamedTuple):
    """How rows are spread: elements of a program at a time, in whole rows; its warps; programs per multiprocessor at
    most; blocks of rows that a program has at least, as every program leaves a part to be added; and how many of them
    are on their way or worked on at once."""

    elements: int
    warps: int
    waves: int
    least: int = 4
    stages: int = 3


def gradient_tiles_for(width: int) -> NormGradientTiles:
    if width <= 1024:
        return NormGradientTiles(512, 1, 16)
    return NormGradientTiles(1024, 4, 5) if width <= 2048 else NormGradientTiles(4096, 8, 3, stages=1)


def add_tiles_for(pixels: int, channels: int) -> AddTiles:
    if pixels <= 1 << 11:
        return AddTiles(32, 64, 8)
    return AddTiles(64, 64, 4) if channels <= 64 else AddTiles(64, 128, 8)


@triton.jit
def standardised(x, columns, eps, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """The rows of x, whose columns beyond WIDTH are zero, with mean zero and variance one; and each one's scale."""
    centred = x - tl.sum(x, 1)[:, None] / WIDTH
    if COLUMNS > WIDTH:
        centred = tl.where(columns[None, :] < WIDTH, centred, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / WIDTH + eps)
    return centred * scale[:, None], scale


@triton.jit
def _normalised(x, columns, gain, shift, eps, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """LayerNorm of the rows of x, whose columns beyond WIDTH are zero."""
    standard, _ = standardised(x, columns, eps, WIDTH, COLUMNS)
    return standard * gain[None, :] + shift[None, :]


@triton.jit
def places_of(first, rows, columns, distance, ALIGN: tl.constexpr):
    """Where a block lies in a tensor that was given as `Rows`."""
    distance *= ALIGN
    return first * distance + rows[:, None] * distance + columns[None, :]


@triton.jit
def _norm_kernel(
    x, gate, weight, bias, out, count, eps, gate_row,
    ALIGN: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """LayerNorm of some rows; times the gate, whose rows are gate_row * ALIGN apart, where there is one."""
    after_the_kernel_before(DEPENDENT)
    first = tl.program_id(0).to(tl.int64) * ROWS
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = (rows < count - first)[:, None] & (columns < WIDTH)[None, :]
    places = rows[:, None] * WIDTH + columns[None, :]
    row = tl.load(x + first * WIDTH + places, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    normed = _normalised(row, columns, gain, shift, eps, WIDTH, COLUMNS)
    if gate is not None:
        by = tl.load(gate + places_of(first, rows, columns, gate_row, ALIGN), mask=inside, other=0.0)
        normed = normed.to(out.dtype.element_ty).to(tl.float32) * by.to(tl.float32)  # rounded as two operations would
    tl.store(out + first * WIDTH + places, normed.to(out.dtype.element_ty), mask=inside)


class Rows(NamedTuple):
    """A tensor (..., C) as rows whose distance in memory is given with the power of two (16 at most) that divides it:
    multiplied by that in a kernel, the compiler knows how wide it may load."""

    tensor: Any = None  # (rows, C); or there is none
    distance: int = 1
    align: int = 1

    @classmethod
    def of(cls, x: Tensor) -> Rows:
        """Of a tensor to be read; copied only where it has to be."""
        rows = x.reshape(-1, x.shape[-1])
        return cls.to(rows if rows.stride(1) == 1 else rows.contiguous())

    @classmethod
    def to(cls, x: Tensor) -> Rows:
        """Of a tensor to be written, whose columns lie side by side and whose rows are evenly spaced."""
        rows = x.view(-1, x.shape[-1])
        align = math.gcd(16, rows.stride(0))
        return cls(rows, rows.stride(0) // align, align)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, gate: Tensor | None = None, elements: int | None = None
) -> Tensor:
    """Of x (..., C); times the gate (..., C), in whose precision the result is then. Each program has so many elements,
    in whole rows."""
    x = x.contiguous()
    by = Rows() if gate is None else Rows.of(gate)
    out = torch.empty(x.shape, dtype=x.dtype if gate is None else gate.dtype, device=x.device)
    width = x.shape[-1]
    count = x.numel() // width
    columns = triton.next_power_of_2(width)
    elements = elements or (1024 if x.numel() <= 1 << 17 else 2048)
    rows = max(1, elements // columns)
    _norm_kernel[(triton.cdiv(count, rows),)](
        x, by.tensor, weight, bias, out, count, eps, by.distance, ALIGN=by.align, WIDTH=width, ROWS=rows,
        COLUMNS=columns, num_warps=4, **launch_options(x.device),
    )  # fmt: skip
    return out


@triton.jit
def _norm_gradients_kernel(
    gradient, x, gate, weight, bias, dx, dgate, parts, count, blocks, eps, gate_row, dgate_row,
    ALIGN: tl.constexpr, DALIGN: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """dx, dgate, and this program's part of dweight and dbias. Blocks of rows come through shared memory
    while others are worked on: loads to registers would be put off until each is needed, one after the other."""
    after_the_kernel_before(DEPENDENT)
    programs = tl.num_programs(0)
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    used = columns < WIDTH
    gain = tl.load(weight + columns, mask=used, other=0.0).to(tl.float32)[None, :]
    shift = tl.load(bias + columns, mask=used, other=0.0).to(tl.float32)[None, :]
    places = rows[:, None] * WIDTH + columns[None, :]
    dgain = tl.zeros((ROWS, COLUMNS), tl.float32)
    dshift = tl.zeros((ROWS, COLUMNS), tl.float32)
    for index in tl.range(tl.program_id(0), blocks, programs, num_stages=STAGES):
        first = index * tl.full((), ROWS, tl.int64)
        inside = (rows < count - first)[:, None] & used[None, :]
        here = first * WIDTH
        raw = tl.load(x + here + places, mask=inside, other=0.0)
        g = widened(tl.load(gradient + here + places, mask=inside, other=0.0))
        if gate is not None:
            by = tl.load(gate + places_of(first, rows, columns, gate_row, ALIGN), mask=inside, other=0.0)
        standard, scale = standardised(widened(raw), columns, eps, WIDTH, COLUMNS)
        if gate is not None:
            of_gate = g * (standard * gain + shift)
            place = places_of(first, rows, columns, dgate_row, DALIGN)
            tl.store(dgate + place, of_gate.to(dgate.dtype.element_ty), mask=inside)
            g *= widened(by)
        dgain += g * standard
        dshift += g
        g *= gain
        along, mean = tl.sum(g * standard, 1) / WIDTH * scale, tl.sum(g, 1) / WIDTH * scale
        d = g * scale[:, None] - (standard * along[:, None] + mean[:, None])
        tl.store(dx + here + places, d.to(dx.dtype.element_ty), mask=inside)
    parts += tl.program_id(0) * 2 * WIDTH + columns
    tl.store(parts, tl.sum(dgain, 0), mask=used)
    tl.store(parts + WIDTH, tl.sum(dshift, 0), mask=used)


def layer_norm_gradients(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    *,
    gate: tuple[Tensor, Tensor] | None = None,
    tiles: NormGradientTiles | None = None,
) -> list[Tensor]:
    """Of LayerNorm(x) (* gate) for x (..., C), weight and bias, given the result's gradient. `gate` is the gate and
    where its gradient goes."""
    x, gradient = x.contiguous(), gradient.contiguous()
    width = x.shape[-1]
    columns = triton.next_power_of_2(width)
    tiles = tiles or gradient_tiles_for(width)
    rows = max(1, tiles.elements // columns)
    count = x.numel() // width
    blocks = triton.cdiv(count, rows)
    most = max(1, min(blocks // tiles.least, tiles.waves * multiprocessors(x.device)))
    programs = max(1, triton.cdiv(blocks, max(1, triton.cdiv(blocks, most))))  # that have equally many
    dx = torch.empty_like(x)
    parts = torch.empty((programs, 2, width), dtype=torch.float32, device=x.device)
    by, result = (Rows(), Rows()) if gate is None else (Rows.of(gate[0]), Rows.to(gate[1]))
    _norm_gradients_kernel[(programs,)](
        gradient, x, by.tensor, weight, bias, dx, result.tensor, parts, count, blocks, eps, by.distance,
        result.distance, ALIGN=by.align, DALIGN=result.align, WIDTH=width, ROWS=rows, COLUMNS=columns,
        STAGES=tiles.stages, num_warps=tiles.warps, **launch_options(x.device),
    )  # fmt: skip
    dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
    add_column_parts(parts.flatten(1), dweight, dbias)
    return [dx, dweight, dbias]


@normalize.layer_norm.kernel
@custom_op("layer_norm", like=lambda x, *rest: x.new_empty(x.shape))
def _forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return layer_norm(x, weight, bias, eps)


@custom_op("layer_norm_backward", like=gradients_of_first(3))
def _backward(gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> list[Tensor]:
    return layer_norm_gradients(gradient, x, weight, bias, eps)


differentiable(_forward, _backward, normalize.layer_norm)


@triton.jit
def _norm_relu_add_kernel(
    x, norm_weight, norm_bias, weight, bias, coarser, out, height, width, coarse_h, coarse_w, scale_y, scale_x, eps,
    WIDTH: tl.constexpr, OUT: tl.constexpr, PLACES: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    after_the_kernel_before(DEPENDENT)
    image, blocks = tl.program_id(1).to(tl.int64), (OUT + N - 1) // N
    place, columns = tl.program_id(0) // blocks * PLACES + tl.arange(0, PLACES), tl.arange(0, COLUMNS)
    n = tl.program_id(0) % blocks * N + tl.arange(0, N)
    inside = place < height * width
    used, wanted = columns < WIDTH, n < OUT
    start = image * height * width
    row = tl.load(
        x + start * WIDTH + place[:, None].to(tl.int64) * WIDTH + columns[None, :],
        mask=inside[:, None] & used[None, :],
        other=0.0,
    ).to(tl.float32)
    top, bottom, down = between(place // width, scale_y, coarse_h)
    left, right, along = between(place % width, scale_x, coarse_w)
    coarser += image * coarse_h * coarse_w * OUT
    ok = inside[:, None] & wanted[None, :]
    upper, lower = top * coarse_w, bottom * coarse_w
    added = interpolated(coarser, upper, lower, left, right, down, along, n, OUT, ok)

    matrix = tl.load(weight + n[None, :] * WIDTH + columns[:, None], mask=used[:, None] & wanted[None, :], other=0.0)
    gain = tl.load(norm_weight + columns, mask=used, other=0.0).to(tl.float32)
    shift = tl.load(norm_bias + columns, mask=used, other=0.0).to(tl.float32)
    normed = _normalised(row, columns, gain, shift, eps, WIDTH, COLUMNS).to(matrix.dtype)
    y = multiply(normed, matrix, tl.zeros((PLACES, N), tl.float32))
    y += tl.load(bias + n, mask=wanted, other=0.0).to(tl.float32)[None, :]
    y = tl.maximum(y, 0.0) + added
    tl.store(out + start * OUT + place[:, None].to(tl.int64) * OUT + n[None, :], y, mask=ok)


@normalize.norm_relu_add.kernel
def norm_relu_add(
    x: Tensor, norm: Norm, weight: Tensor, bias: Tensor, coarser: Tensor, tiles: AddTiles | None = None
) -> Tensor:
    x, coarser, weight = x.contiguous(), coarser.contiguous(), weight.t().contiguous()
    batch, height, width, channels = x.shape
    coarse_h, coarse_w = coarser.shape[1:3]
    count = weight.shape[0]
    out = x.new_empty(batch, height, width, count)
    tiles = tiles or add_tiles_for(batch * height * width, channels)
    block = min(tiles.channels, padded(count))
    _norm_relu_add_kernel[(triton.cdiv(height * width, tiles.pixels) * triton.cdiv(count, block), batch)](
        x, norm.weight, norm.bias, weight, bias, coarser, out, height, width, coarse_h, coarse_w, coarse_h / height,
        coarse_w / width, norm.eps, WIDTH=channels, OUT=count, PLACES=tiles.pixels,
        COLUMNS=padded(channels), N=block, num_warps=tiles.warps, **launch_options(x.device),
    )  # fmt: skip
    return out
