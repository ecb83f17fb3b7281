# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""What lies between the products of an MLP and of its gradients, in Triton; `mlp.py` has the products.

h is the first product before its bias, which is added here in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.column_sums import add_column_parts, column_part, cut
from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.rounding import widened


class MLPTiles(NamedTuple):
    """Rows and hidden units of a block, and the warps of the program that works on it."""

    rows: int
    columns: int
    warps: int


_FORWARD = MLPTiles(32, 128, 4)


def _backward_tiles(rows: int) -> MLPTiles:
    return MLPTiles(32, 128, 8) if rows >= 1 << 17 else MLPTiles(8, 128, 4)


@triton.jit
def _below(h):
    """The normal distribution's share below h, and its density times the square root of 2 pi.

    By a rational polynomial (Abramowitz and Stegun 7.1.26) to within 1e-7, from the side of the smaller tail, so that
    small shares keep their digits; it shares the exponential with the density.
    """
    density = tl.exp(h * h * -0.5)
    t = 1.0 / (1.0 + 0.2316418882 * tl.abs(h))  # 0.3275911 / sqrt(2)
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    tail *= density
    return tl.where(h > 0, 1.0 - tail, tail), density


@triton.jit
def _gelu(
    h, bias, u, rows, HIDDEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    after_the_kernel_before(DEPENDENT)
    first = tl.program_id(0).to(tl.int64) * ROWS
    row, column = tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (first + row < rows)[:, None] & (column < HIDDEN)[None, :]
    h, u = h + first * HIDDEN, u + first * HIDDEN
    place = row[:, None] * HIDDEN + column[None, :]
    x = widened(tl.load(h + place, mask=inside, other=0.0))
    x += tl.load(bias + column, mask=column < HIDDEN, other=0.0).to(tl.float32)[None, :]
    share, _ = _below(x)
    tl.store(u + place, (x * share).to(u.dtype.element_ty), mask=inside)


@triton.jit
def _gelu_gradients(
    du, h, bias, g, u, parts, rows, chunk, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """u = gelu(h + bias); dh = du gelu'(h + bias) in du's place; and a part's sums over rows of dh, then of g."""
    after_the_kernel_before(DEPENDENT)
    part, across = tl.program_id(0).to(tl.int64), tl.cdiv(HIDDEN, COLUMNS)
    count = tl.minimum(chunk, rows - part * chunk).to(tl.int32)
    parts += part * (HIDDEN + WIDTH)
    if tl.program_id(1) < across:
        row, column = tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        used = column < HIDDEN
        shift = tl.load(bias + column, mask=used, other=0.0).to(tl.float32)[None, :]
        start_of_part = part * chunk * HIDDEN  # a map may have more than 2**31 units, a part has fewer
        du, h, u = du + start_of_part, h + start_of_part, u + start_of_part
        place = row[:, None] * HIDDEN + column[None, :]
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(0, count, ROWS):
            inside = (start + row < count)[:, None] & used[None, :]
            x = widened(tl.load(h + place, mask=inside, other=0.0)) + shift
            gradient = widened(tl.load(du + place, mask=inside, other=0.0))
            share, density = _below(x)
            gradient *= share + x * density * 0.3989422804
            tl.store(u + place, (x * share).to(u.dtype.element_ty), mask=inside)
            tl.store(du + place, gradient.to(du.dtype.element_ty), mask=inside)
            total += gradient
            place += ROWS * HIDDEN
        tl.store(parts + column, tl.sum(total, axis=0), mask=used)
    else:
        column = (tl.program_id(1) - across) * COLUMNS + tl.arange(0, COLUMNS)
        sums = column_part(g + part * chunk * WIDTH, count, column, WIDTH, ROWS, COLUMNS)
        tl.store(parts + HIDDEN + column, sums, mask=column < WIDTH)


def gelu(h: Tensor, bias: Tensor) -> Tensor:
    """gelu(h + bias) of a contiguous h (rows, hidden), in its dtype."""
    rows, hidden = h.shape
    u, tiles = torch.empty_like(h), _FORWARD
    _gelu[(triton.cdiv(rows, tiles.rows), triton.cdiv(hidden, tiles.columns))](
        h, bias, u, rows, HIDDEN=hidden, ROWS=tiles.rows, COLUMNS=tiles.columns, num_warps=tiles.warps,
        **launch_options(h.device),
    )  # fmt: skip
    return u


def gelu_gradients_(du: Tensor, h: Tensor, bias: Tensor, g: Tensor, bias2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u = gelu(h + bias), and the gradients of both biases; du (rows, hidden), u's gradient, becomes that of h.

    g (rows, width) is the gradient of the MLP's result. All are contiguous.
    """
    (rows, hidden), width = h.shape, g.shape[1]
    tiles = _backward_tiles(rows)
    across = triton.cdiv(hidden, tiles.columns) + triton.cdiv(width, tiles.columns)
    chunk, count = cut(rows, across, tiles.rows, tiles.warps, h.device)
    u, db1, db2 = torch.empty_like(h), torch.empty_like(bias), torch.empty_like(bias2)
    parts = torch.empty((count, hidden + width), dtype=torch.float32, device=h.device)
    _gelu_gradients[(count, across)](
        du, h, bias, g, u, parts, rows, chunk, HIDDEN=hidden, WIDTH=width, ROWS=tiles.rows, COLUMNS=tiles.columns,
        num_warps=tiles.warps, **launch_options(h.device),
    )  # fmt: skip
    add_column_parts(parts, db1, db2)
    return u, db1, db2
