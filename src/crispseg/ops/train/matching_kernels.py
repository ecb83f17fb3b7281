"""Triton kernels of `matching.py`: descriptors are read once in each direction, and never widened in memory.

A prototype in float32 is two numbers in half precision, the second what the first leaves; the sum of both products with
a descriptor is as good as one in float32.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.rounding import multiply
from crispseg.ops.common.tokens_and_pixels import add_parts, like, product
from crispseg.ops.infer.pixel_attention import MOST_CHANNELS
from crispseg.ops.infer.pixel_attention_kernels import AttentionTiles, inside

_TILES = AttentionTiles(64, 4, 2, 3)
_COLUMNS = 64  # channels that a program of the gradients holds
_FLOAT32 = AttentionTiles(16, 4, 1)  # for the interpreter
_ROWS = 32  # prototypes of a group of classes
_LEAST_NORM = tl.constexpr(1e-12)  # as functional.normalize has it


@triton.jit
def _prototypes(
    prototypes, x, first, image, classes, count, column,
    WIDTH: tl.constexpr, EVEN: tl.constexpr, CLASSES: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Some channels of some classes' prototypes, classes side by side: their places, which of them there are, and both
    halves."""
    row = tl.arange(0, COUNT * CLASSES)
    index, one = first + row % CLASSES, row // CLASSES
    filled = ((index < classes) & (one < count))[:, None] & inside(column, WIDTH, EVEN)[None, :]
    places = (index * count + one)[:, None] * WIDTH + column[None, :]
    whole = tl.load(prototypes + image * classes * count * WIDTH + places, mask=filled, other=0.0)
    high = like(whole, x)
    return one < count, places, filled, high, like(whole - high.to(tl.float32), x)


@triton.jit
def _best_kernel(
    x, prototypes, best, winners, norms, length, span, classes, count,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, CLASSES: tl.constexpr, COUNT: tl.constexpr,
    PIXELS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """For a span of the pixels and some classes: the best cosine, which prototype it is with, and pixels' norms."""
    first, image = tl.program_id(1) * CLASSES, tl.program_id(2).to(tl.int64)
    column, index = tl.arange(0, COLUMNS), first + tl.arange(0, CLASSES)
    used = inside(column, WIDTH, WIDTH == COLUMNS)
    there, _, _, high, low = _prototypes(
        prototypes, x, first, image, classes, count, column, WIDTH, WIDTH == COLUMNS, CLASSES, COUNT
    )  # fmt: skip
    begin = tl.program_id(0) * span
    x += (image * length + begin) * WIDTH
    norms += image * length + begin
    best += image * classes * length + begin
    winners += image * classes * length + begin
    last = tl.minimum(length - begin, span)
    for start in range(0, last, PIXELS):
        where = start + tl.arange(0, PIXELS)
        here = inside(where, last, EVEN)
        some = tl.load(x + where[:, None] * WIDTH + column[None, :], mask=here[:, None] & used[None, :], other=0.0)
        scores = multiply(some, tl.trans(high), product(some, tl.trans(low)))
        scores = tl.where(there[None, :], scores, float("-inf"))
        highest, winner = tl.max(tl.reshape(scores, (PIXELS, COUNT, CLASSES)), 1, return_indices=True)
        wide = some.to(tl.float32)
        norm = tl.maximum(tl.sqrt(tl.sum(wide * wide, 1)), _LEAST_NORM)
        place = index[None, :].to(tl.int64) * length + where[:, None]
        keep = here[:, None] & (index < classes)[None, :]
        tl.store(best + place, highest / norm[:, None], mask=keep)
        tl.store(winners + place, winner.to(tl.uint8), mask=keep)
        tl.store(norms + where, norm, mask=here)


@triton.jit
def _best_gradients(
    g, x, prototypes, best, winners, norms, dx, parts, length, span, classes, count,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, CLASSES: tl.constexpr, COUNT: tl.constexpr,
    PIXELS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """With n the norm and G each winner's gradient over n: dP = G^T x, dx = G P - x (x . G P) / n^2. As the winner's
    product with x is n times its cosine, x . G P needs no other channels than the program's own.

    dx is linear in G: where classes are dealt out to several programs, each writes its share."""
    group, image = tl.program_id(1) // BLOCKS, tl.program_id(2).to(tl.int64)
    first, images = group * CLASSES, tl.num_programs(2)
    column = tl.program_id(1) % BLOCKS * COLUMNS + tl.arange(0, COLUMNS)
    used = inside(column, WIDTH, WIDTH == BLOCKS * COLUMNS)
    _, places, filled, high, low = _prototypes(
        prototypes, x, first, image, classes, count, column, WIDTH, WIDTH == BLOCKS * COLUMNS, CLASSES, COUNT
    )  # fmt: skip
    index, one = first + tl.arange(0, CLASSES), tl.arange(0, COUNT)
    begin = tl.program_id(0) * span
    x += (image * length + begin) * WIDTH
    dx += ((group * images + image) * length + begin) * WIDTH
    norms += image * length + begin
    offset = image * classes * length + begin
    g, best, winners = g + offset, best + offset, winners + offset
    last = tl.minimum(length - begin, span)
    d_prototypes = tl.zeros([COUNT * CLASSES, COLUMNS], tl.float32)
    for start in range(0, last, PIXELS):
        where = start + tl.arange(0, PIXELS)
        here = inside(where, last, EVEN)
        some = tl.load(x + where[:, None] * WIDTH + column[None, :], mask=here[:, None] & used[None, :], other=0.0)
        place = index[None, :].to(tl.int64) * length + where[:, None]
        keep = here[:, None] & (index < classes)[None, :]
        norm = tl.load(norms + where, mask=here, other=1.0)
        winner = tl.load(winners + place, mask=keep, other=0).to(tl.int32)
        cosine = tl.load(best + place, mask=keep, other=0.0)
        # Rounded before all else, so that what cancels does so exactly.
        gradient = like(tl.load(g + place, mask=keep, other=0.0) / norm[:, None], some).to(tl.float32)
        matched = tl.where(winner[:, None, :] == one[None, :, None], gradient[:, None, :], 0.0)
        matched = like(tl.reshape(matched, (PIXELS, COUNT * CLASSES)), some)
        # A norm at its floor is a constant.
        along = tl.where(norm > _LEAST_NORM, tl.sum(gradient * cosine, 1) / norm, 0.0)
        result = multiply(matched, high, product(matched, low)) - some.to(tl.float32) * along[:, None]
        tl.store(
            dx + where[:, None] * WIDTH + column[None, :], like(result, some), mask=here[:, None] & used[None, :]
        )  # fmt: skip
        d_prototypes = multiply(tl.trans(matched), some, d_prototypes)

    part = image * tl.num_programs(0) + tl.program_id(0)
    tl.store(parts + part * classes * count * WIDTH + places, d_prototypes, mask=filled)


class Shape(NamedTuple):
    """How classes, channels and pixels are dealt out to programs."""

    splits: int  # of the pixels
    groups: int  # of classes
    blocks: int  # of channels
    numbers: tuple[int, int, int, int]
    fixed: dict[str, Any]

    @classmethod
    def of(cls, x: Tensor, prototypes: Tensor, most: int) -> Shape:
        batch, length, width = x.shape
        classes, count = prototypes.shape[1:3]
        tiles = _FLOAT32 if x.dtype == torch.float32 else _TILES
        each = triton.next_power_of_2(count)
        group = max(1, min(_ROWS // each, triton.next_power_of_2(classes)))
        group = max(group, 16 // each)  # a product has sixteen rows at least
        groups = triton.cdiv(classes, group)
        columns = min(most, max(16, triton.next_power_of_2(width)))
        blocks = triton.cdiv(width, columns)
        span = tiles.span(batch * groups * blocks, length, x.device)
        fixed = {
            "WIDTH": width, "COLUMNS": columns, "CLASSES": group, "COUNT": each,
            "PIXELS": tiles.pixels, "EVEN": length % tiles.pixels == 0,
            "num_warps": tiles.warps, "num_stages": tiles.stages,
        }  # fmt: skip
        return cls(triton.cdiv(length, span), groups, blocks, (length, span, classes, count), fixed)


def best(x: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best cosines and who won, (B, classes, L), and the norms of x, (B, L)."""
    x, prototypes = x.contiguous(), prototypes.contiguous()
    shape = Shape.of(x, prototypes, MOST_CHANNELS)
    size = (x.shape[0], prototypes.shape[1], x.shape[1])
    values = torch.empty(size, dtype=torch.float32, device=x.device)
    winners = torch.empty(size, dtype=torch.uint8, device=x.device)
    norms = torch.empty(x.shape[:2], dtype=torch.float32, device=x.device)
    _best_kernel[(shape.splits, shape.groups, len(x))](
        x, prototypes, values, winners, norms, *shape.numbers, **shape.fixed
    )  # fmt: skip
    return values, winners, norms


def best_back(
    g: Tensor, x: Tensor, prototypes: Tensor, values: Tensor, winners: Tensor, norms: Tensor
) -> tuple[Tensor, Tensor]:
    g, x, prototypes = g.contiguous(), x.contiguous(), prototypes.contiguous()
    shape = Shape.of(x, prototypes, _COLUMNS)
    dx = x.new_empty(shape.groups, *x.shape)
    parts = torch.empty(len(x), shape.splits, *prototypes.shape[1:], dtype=torch.float32, device=x.device)
    _best_gradients[(shape.splits, shape.groups * shape.blocks, len(x))](
        g, x, prototypes, values, winners, norms, dx, parts, *shape.numbers, BLOCKS=shape.blocks, **shape.fixed
    )  # fmt: skip
    d_prototypes = torch.empty_like(prototypes)
    add_parts(parts, d_prototypes)
    return dx.view(x.shape) if shape.groups == 1 else dx.sum(0), d_prototypes
