"""LayerNorm's gradients in two Triton kernels, with those of a product that follows it.

With h = (x - mean) s, s = 1 / sqrt(variance + eps), and g the gradient of n = weight h + bias (that of n * gate, times
the gate), per row:

    dx = s (g weight - mean(g weight) - h mean(g weight h))    dweight = sum g h    dbias = sum g    dgate = g_out n

Statistics are made again from x. Every program leaves its part of dweight and dbias; a second kernel adds the parts in
a fixed order. Sums are float32.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.column_sums import add_parts
from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.hardware import multiprocessors
from crispseg.ops.common.rounding import widened
from crispseg.ops.maps.normalize_kernels import Rows, places_of, standardised


class NormGradientTiles(NamedTuple):
    """How rows are spread: elements of a program at a time, in whole rows; its warps; programs per multiprocessor at
    most; blocks of rows that a program has at least, as every program leaves a part to be added; and how many of them
    are on their way or worked on at once."""

    elements: int
    warps: int
    waves: int
    least: int = 4
    stages: int = 3


def tiles_for(width: int) -> NormGradientTiles:
    if width <= 1024:
        return NormGradientTiles(512, 1, 16)
    return NormGradientTiles(1024, 4, 5) if width <= 2048 else NormGradientTiles(4096, 8, 3, stages=1)


@triton.jit
def _gradients(
    gradient, x, gate, weight, bias, dx, dgate, parts, count, blocks, eps, gate_row, dgate_row,
    ALIGN: tl.constexpr, DALIGN: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """dx, dgate, and this program's part of dweight and dbias. Blocks of rows come through shared memory
    while others are worked on: loads to registers would be put off until each is needed, one after the other."""
    after_the_kernel_before(EARLY)
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


def gradients(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    *,
    gate: tuple[Tensor, Tensor] | None = None,
    tiles: NormGradientTiles | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of LayerNorm(x) (* gate) for x (..., C), weight and bias, given the result's gradient. `gate` is the gate and
    where its gradient goes."""
    x, gradient = x.contiguous(), gradient.contiguous()
    width = x.shape[-1]
    columns = triton.next_power_of_2(width)
    tiles = tiles or tiles_for(width)
    rows = max(1, tiles.elements // columns)
    count = x.numel() // width
    blocks = triton.cdiv(count, rows)
    most = max(1, min(blocks // tiles.least, tiles.waves * multiprocessors(x.device)))
    programs = max(1, triton.cdiv(blocks, max(1, triton.cdiv(blocks, most))))  # that have equally many
    dx = torch.empty_like(x)
    parts = torch.empty((programs, 2, width), dtype=torch.float32, device=x.device)
    by, result = (None, None) if gate is None else (Rows.of(gate[0]), Rows.to(gate[1]))
    _gradients[(programs,)](
        gradient, x, by and by.tensor, weight, bias, dx, result and result.tensor, parts, count, blocks, eps,
        by.distance if by else 1, result.distance if result else 1, ALIGN=by.align if by else 1,
        DALIGN=result.align if result else 1, WIDTH=width, ROWS=rows, COLUMNS=columns, STAGES=tiles.stages,
        num_warps=tiles.warps, **launch_options(x.device),
    )  # fmt: skip
    dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
    add_parts(parts.flatten(1), dweight, dbias)
    return dx, dweight, dbias
