# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Sums over the rows of a matrix, one per column, as gradients of biases are: in parts, then the parts added.

The order of every sum is fixed, so equal inputs give equal bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.hardware import multiprocessors
from crispseg.ops.common.rounding import widened

_MOST_PARTS = 512  # that a program loads at once when they are added
_ADDED, _ADDING_WARPS = 16, 16  # columns that it adds, and its warps
_BUSY = 32  # warps at work on a multiprocessor
_SUMS, _RELU = (128, 4096, 8), (128, 2048, 4)  # the most columns of a block, its elements, and warps


def cut(rows: int, across: int, block: int, warps: int, device: torch.device) -> tuple[int, int]:
    """The rows of a part, a multiple of `block`, and how many parts there are; `across` programs share one part."""
    wanted = min(_MOST_PARTS, triton.cdiv(_BUSY // warps * multiprocessors(device), across))
    chunk = triton.cdiv(triton.cdiv(rows, wanted), block) * block
    return chunk, triton.cdiv(rows, chunk)


@triton.jit
def sum_rows(base, count, columns, width, ROWS: tl.constexpr, ALL: tl.constexpr):
    """The sum of `count` rows of length `width`, ROWS at a time, at the given columns. ALL: none lies outside."""
    total = tl.zeros((ROWS, columns.shape[0]), tl.float32)
    rows = tl.arange(0, ROWS)
    for start in range(0, count, ROWS):
        row = start + rows
        places = base + tl.minimum(row, count - 1)[:, None] * width + columns[None, :]
        some = tl.load(places) if ALL else tl.load(places, mask=(columns < width)[None, :], other=0.0)
        total += tl.where((row < count)[:, None], some, 0.0)
    return tl.sum(total, 0)


@triton.jit
def column_part(source, count, column, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sums of these columns over the first `count` rows, (COLUMNS,) in float32."""
    row = tl.arange(0, ROWS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    place = source + row[:, None] * WIDTH + column[None, :]
    for start in range(0, count, ROWS):
        inside = (start + row < count)[:, None] & (column < WIDTH)[None, :]
        total += widened(tl.load(place, mask=inside, other=0.0))
        place += ROWS * WIDTH
    return tl.sum(total, axis=0)


@triton.jit
def _column_parts(
    source, parts, rows, chunk, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    after_the_kernel_before(DEPENDENT)
    part = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    count = tl.minimum(chunk, rows - part * chunk).to(tl.int32)
    total = column_part(source + part * chunk * WIDTH, count, column, WIDTH, ROWS, COLUMNS)
    tl.store(parts + part * WIDTH + column, total, mask=column < WIDTH)


@triton.jit
def _relu_parts(
    g, y, out, parts, rows, chunk,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """g where y > 0, else zero; and a part's sums of it."""
    after_the_kernel_before(DEPENDENT)
    part = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    count = tl.minimum(chunk, rows - part * chunk).to(tl.int32)
    g, y, out = g + part * chunk * WIDTH, y + part * chunk * WIDTH, out + part * chunk * WIDTH
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    place = row[:, None] * WIDTH + column[None, :]
    for start in range(0, count, ROWS):
        inside = (start + row < count)[:, None] & (column < WIDTH)[None, :]
        passed = tl.load(y + place, mask=inside, other=0.0) > 0
        value = tl.where(passed, tl.load(g + place, mask=inside, other=0.0), 0.0).to(out.dtype.element_ty)
        tl.store(out + place, value, mask=inside)
        total += widened(value)
        place += ROWS * WIDTH
    tl.store(parts + part * WIDTH + column, tl.sum(total, axis=0), mask=column < WIDTH)


@triton.jit
def _add_column_parts(
    parts, first, second, count, WIDTH: tl.constexpr, FIRST: tl.constexpr,
    PARTS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Sum over parts (count, WIDTH): FIRST columns into one vector, the rest into another."""
    after_the_kernel_before(DEPENDENT)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = sum_rows(parts, count, column, WIDTH, PARTS, WIDTH % COLUMNS == 0)
    tl.store(first + column, total.to(first.dtype.element_ty), mask=column < FIRST)
    if FIRST < WIDTH:
        rest = (column >= FIRST) & (column < WIDTH)
        tl.store(second + column - FIRST, total.to(second.dtype.element_ty), mask=rest)


def add_column_parts(parts: Tensor, first: Tensor, second: Tensor | None = None) -> None:
    """Sum over parts (parts, columns) into `first`, and what is left of the columns into `second`."""
    count, width = parts.shape
    _add_column_parts[(triton.cdiv(width, _ADDED),)](
        parts, first, first if second is None else second, count, WIDTH=width, FIRST=first.shape[0],
        PARTS=min(_MOST_PARTS, triton.next_power_of_2(count)), COLUMNS=_ADDED, num_warps=_ADDING_WARPS,
        **launch_options(parts.device),
    )  # fmt: skip


class Blocks(NamedTuple):
    """How a contiguous matrix (rows, WIDTH) is cut into blocks."""

    matrix: Tensor
    height: int
    across: int  # side by side
    options: dict[str, Any]  # of a launch

    @classmethod
    def of(cls, x: Tensor, columns: int, elements: int, warps: int) -> Blocks:
        """With so many columns at most, elements, and warps of the program that works on one."""
        width = x.shape[1]
        columns = min(columns, triton.next_power_of_2(width))
        height = elements // columns
        options = {"WIDTH": width, "ROWS": height, "COLUMNS": columns, "num_warps": warps, **launch_options(x.device)}
        return cls(x, height, triton.cdiv(width, columns), options)

    @property
    def grid(self) -> tuple[int, int]:
        """Of programs that take one block each."""
        return triton.cdiv(len(self.matrix), self.height), self.across

    def parts(self, sums: int = 1) -> tuple[int, Tensor]:
        """The rows of a part, whose blocks one program works on, and room for so many sums over each."""
        rows, width = self.matrix.shape
        chunk, count = cut(rows, self.across, self.height, self.options["num_warps"], self.matrix.device)
        return chunk, torch.empty((count, sums * width), dtype=torch.float32, device=self.matrix.device)


def column_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Of a contiguous x (rows, columns): sums over rows, made in float32."""
    blocks = Blocks.of(x, *_SUMS)
    chunk, parts = blocks.parts()
    _column_parts[(len(parts), blocks.across)](x, parts, len(x), chunk, **blocks.options)
    out = torch.empty(x.shape[1], dtype=dtype, device=x.device)
    add_column_parts(parts, out)
    return out


def relu_gradients(g: Tensor, y: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The gradient before a ReLU that gave y, from the gradient g after it; and its sums over rows. All contiguous."""
    blocks = Blocks.of(g, *_RELU)
    chunk, parts = blocks.parts()
    out = torch.empty_like(g)
    _relu_parts[(len(parts), blocks.across)](g, y, out, parts, len(g), chunk, **blocks.options)
    sums = torch.empty(g.shape[1], dtype=dtype, device=g.device)
    add_column_parts(parts, sums)
    return out, sums
