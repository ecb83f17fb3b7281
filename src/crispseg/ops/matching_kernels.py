"""Triton kernels of `matching.py`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.attend_kernels import Tiles

MATCH = Tiles(64, 4, 1)


@triton.jit
def _cosines_kernel(
    descriptors, prototypes, out, scale, length, width, classes, count,
    PIXELS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Some pixels' scores, GROUP classes at a time; the scores of single prototypes stay in registers."""
    where, image = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS), tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    inside = (where[:, None] < length) & (columns[None, :] < width)
    x = tl.load(descriptors + (image * length + where[:, None]) * width + columns[None, :], mask=inside, other=0.0)
    wide = x.to(tl.float32)
    factor = scale / tl.maximum(tl.sqrt(tl.sum(wide * wide, 1)), 1e-12)
    row = tl.arange(0, GROUP * COUNT)
    for first in range(0, classes, GROUP):
        index, one = first + row // COUNT, row % COUNT
        real = (index < classes) & (one < count)
        place = ((image * classes + index) * count + one)[:, None] * width + columns[None, :]
        p = tl.load(prototypes + place, mask=real[:, None] & (columns[None, :] < width), other=0.0)
        norm = tl.sqrt(tl.sum(p.to(tl.float32) * p.to(tl.float32), 1))
        scores = tl.dot(x, tl.trans(p), input_precision="ieee") / tl.maximum(norm, 1e-12)[None, :]
        scores = tl.where((one < count)[None, :], scores, float("-inf"))
        best = tl.max(tl.reshape(scores, (PIXELS, GROUP, COUNT)), 2) * factor[:, None]
        group = first + tl.arange(0, GROUP)
        mask = (where[:, None] < length) & (group[None, :] < classes)
        tl.store(out + (image * classes + group[None, :]) * length + where[:, None], best, mask=mask)


def best_cosines(descriptors: Tensor, prototypes: Tensor, scale: float) -> Tensor:
    batch, length, width = descriptors.shape
    classes, count = prototypes.shape[1:3]
    descriptors, prototypes = descriptors.contiguous(), prototypes.contiguous()
    out = torch.empty(batch, classes, length, dtype=torch.float32, device=descriptors.device)
    padded = triton.next_power_of_2(count)
    group = max(16 // padded, min(64 // padded, triton.next_power_of_2(classes)), 1)
    tiles = Tiles(16, 4, 1) if descriptors.dtype == torch.float32 else MATCH
    _cosines_kernel[(triton.cdiv(length, tiles.pixels), batch)](
        descriptors, prototypes, out, scale, length, width, classes, count,
        PIXELS=tiles.pixels, WIDTH=max(16, triton.next_power_of_2(width)), GROUP=group, COUNT=padded,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


@triton.jit
def _grouped_kernel(
    x, weight, bias, out, rows, inner, outer, row_stride, group_stride, out_row_stride, out_group_stride,
    ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * OUTER + tl.arange(0, OUTER)
    total = tl.zeros([ROWS, OUTER], tl.float32)
    for start in range(0, inner, INNER):
        k = start + tl.arange(0, INNER)
        a = tl.load(
            x + group * group_stride + row[:, None] * row_stride + k[None, :],
            mask=(row[:, None] < rows) & (k[None, :] < inner),
            other=0.0,
        )
        b = tl.load(
            weight + (group * inner + k[:, None]) * outer + columns[None, :],
            mask=(k[:, None] < inner) & (columns[None, :] < outer),
            other=0.0,
        )
        total += tl.dot(a, b, input_precision="ieee")
    total += tl.load(bias + group * outer + columns, mask=columns < outer, other=0.0).to(tl.float32)[None, :]
    if RELU:
        total = tl.maximum(total, 0.0)
    mask = (row[:, None] < rows) & (columns[None, :] < outer)
    tl.store(out + group * out_group_stride + row[:, None] * out_row_stride + columns[None, :], total, mask=mask)


def grouped_product(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    batch, classes, inner = x.shape
    groups, _, outer = weight.shape
    x, weight = x.contiguous(), weight.contiguous()
    out = x.new_empty(batch, classes, outer)
    rows = batch * classes if groups == 1 else batch
    row_step = 1 if groups == 1 else classes
    block = min(64, max(16, triton.next_power_of_2(rows)))
    columns = 32
    _grouped_kernel[(triton.cdiv(outer, columns), groups, triton.cdiv(rows, block))](
        x, weight, bias, out, rows, inner, outer, row_step * inner, inner, row_step * outer, outer,
        ROWS=block, INNER=64, OUTER=columns, RELU=relu, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _pool_kernel(x, out, length, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    image = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    highest = tl.full([ROWS, COLUMNS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, length, ROWS):
        where = start + tl.arange(0, ROWS)
        inside = (where[:, None] < length) & (columns[None, :] < width)
        part = tl.load(x + (image * length + where[:, None]) * width + columns[None, :], mask=inside, other=0.0)
        part = part.to(tl.float32)
        highest = tl.maximum(highest, tl.where(inside, part, float("-inf")))
        total += part
    pooled = tl.where(columns < width // 2, tl.max(highest, 0), tl.sum(total, 0) / length)
    tl.store(out + image * width + columns, pooled, mask=columns < width)


def max_and_mean(x: Tensor) -> Tensor:
    batch, length, width = x.shape
    x = x.contiguous()
    out = x.new_empty(batch, width)
    _pool_kernel[(triton.cdiv(width, 16), batch)](x, out, length, width, ROWS=128, COLUMNS=16, num_warps=4)
    return out


@triton.jit
def _mix_kernel(logits, bank, out, classes, count, width, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    index, image = tl.program_id(0), tl.program_id(1)
    one, columns = tl.arange(0, COUNT), tl.arange(0, WIDTH)
    scores = tl.load(logits + (image * classes + index) * count + one, mask=one < count, other=float("-inf"))
    scores = scores.to(tl.float32)
    weights = tl.exp(scores - tl.max(scores, 0))
    weights = weights / tl.sum(weights, 0)
    inside = (one[:, None] < count) & (columns[None, :] < width)
    candidates = tl.load(bank + (index * count + one)[:, None] * width + columns[None, :], mask=inside, other=0.0)
    mixed = tl.sum(weights[:, None] * candidates.to(tl.float32), 0)
    tl.store(out + (image * classes + index) * width + columns, mixed, mask=columns < width)


def mix_candidates(logits: Tensor, bank: Tensor) -> Tensor:
    classes, count, width = bank.shape
    out = logits.new_empty(logits.shape[0], classes, width)
    _mix_kernel[(classes, logits.shape[0])](
        logits.contiguous(), bank, out, classes, count, width,
        COUNT=triton.next_power_of_2(count), WIDTH=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out
