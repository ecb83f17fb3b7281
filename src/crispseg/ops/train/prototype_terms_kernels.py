# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Triton kernels of `prototype_terms.py`: both terms and their gradients, one program for each image."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.rounding import INTERPRETED

_LEAST_NORM = tl.constexpr(1e-12)  # as functional.normalize has it
_LEAST = 16  # rows of a product
_CHANNELS = 32  # at a time
_IMAGES = 1024  # added at a time


@triton.jit
def _product(x, y):
    """x y, as good as in float32."""
    return tl.dot(x, y, input_precision="ieee" if INTERPRETED else "tf32x3")


@triton.jit
def _some(start, row, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, FILLED: tl.constexpr):
    """Places of some channels, and which of them there are."""
    column = start + tl.arange(0, COLUMNS)
    return row[:, None] * WIDTH + column[None, :], (row < FILLED)[:, None] & (column < WIDTH)[None, :]


@triton.jit
def _terms_and_gradients(
    prototypes, d_orth, d_margin, parts, limit, orth_scale, margin_scale,
    CLASSES: tl.constexpr, COUNT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """All prototypes of an image are rows here, and every row has its class's mean. Terms depend on the rows' products
    with each other only, and gradients are mixtures of rows: so channels are taken some at a time, twice."""
    after_the_kernel_before(EARLY)
    FILLED: tl.constexpr = CLASSES * COUNT
    row, other = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]
    both = (row < FILLED) & (other < FILLED)
    same = (row // COUNT == other // COUNT) & both
    average = tl.where(same, 1.0 / COUNT, 0.0)
    offset = tl.program_id(0).to(tl.int64) * (FILLED * WIDTH)
    prototypes, d_orth, d_margin = prototypes + offset, d_orth + offset, d_margin + offset
    cosines = tl.zeros((ROWS, ROWS), tl.float32)
    means = tl.zeros((ROWS, ROWS), tl.float32)
    for start in range(0, WIDTH, COLUMNS):
        places, inside = _some(start, tl.arange(0, ROWS), WIDTH, COLUMNS, FILLED)
        x = tl.load(prototypes + places, mask=inside, other=0.0)
        mean = _product(average, x)
        cosines += _product(x, tl.trans(x))
        means += _product(mean, tl.trans(mean))

    cosines = tl.where(same & (row != other), cosines, 0.0)
    orth = tl.sum(tl.sum(tl.abs(cosines), 1), 0) * orth_scale
    signs = tl.where(cosines > 0, 1.0, tl.where(cosines < 0, -1.0, 0.0)) * (2 * orth_scale)

    squares = tl.where(row == other, means, 0.0)
    length = tl.sqrt(tl.sum(squares, 1))[:, None]
    over = 1.0 / tl.maximum(length, _LEAST_NORM)
    over_other = 1.0 / tl.maximum(tl.sqrt(tl.sum(squares, 0)), _LEAST_NORM)[None, :]
    means *= over * over_other
    close = both & (row // COUNT != other // COUNT) & (means > limit)
    each = margin_scale / (COUNT * COUNT)
    margin = tl.sum(tl.sum(tl.where(close, means - limit, 0.0), 1), 0) * each
    # With u the means at length one: du = 2 each (sum of close ones' u), dmean = (du - u (u . du)) / length.
    along = tl.sum(tl.where(close, means, 0.0), 1)[:, None]
    mixture = tl.where(close, over_other, 0.0)
    mixture -= tl.where((row == other) & (length > _LEAST_NORM), along * over, 0.0)
    mixture = _product(mixture * over * (2 * each), average)

    for start in range(0, WIDTH, COLUMNS):
        places, inside = _some(start, tl.arange(0, ROWS), WIDTH, COLUMNS, FILLED)
        x = tl.load(prototypes + places, mask=inside, other=0.0)
        tl.store(d_orth + places, _product(signs, x), mask=inside)
        tl.store(d_margin + places, _product(mixture, x), mask=inside)
    tl.store(parts + tl.program_id(0), orth)
    tl.store(parts + tl.num_programs(0) + tl.program_id(0), margin)


@triton.jit
def _add(parts, orth, margin, images, IMAGES: tl.constexpr, EARLY: tl.constexpr):
    after_the_kernel_before(EARLY)
    first, second = tl.zeros((IMAGES,), tl.float32), tl.zeros((IMAGES,), tl.float32)
    for start in range(0, images, IMAGES):
        image = start + tl.arange(0, IMAGES)
        first += tl.load(parts + image, mask=image < images, other=0.0)
        second += tl.load(parts + images + image, mask=image < images, other=0.0)
    tl.store(orth, tl.sum(first, 0))
    tl.store(margin, tl.sum(second, 0))


def terms_and_gradients(prototypes: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of prototypes (B, classes, K, d) in float32: both terms, and their gradients as the prototypes lie."""
    prototypes = prototypes.contiguous()
    images, classes, count, width = prototypes.shape
    device = prototypes.device
    d_orth, d_margin = torch.empty_like(prototypes), torch.empty_like(prototypes)
    orth, margin = (torch.empty((), dtype=torch.float32, device=device) for _ in range(2))
    parts = torch.empty((2, images), dtype=torch.float32, device=device)
    pairs = images * classes * max(1, count * (count - 1))
    _terms_and_gradients[(images,)](
        prototypes, d_orth, d_margin, parts, limit, 1 / pairs, 1 / images, CLASSES=classes, COUNT=count, WIDTH=width,
        ROWS=max(_LEAST, triton.next_power_of_2(classes * count)), COLUMNS=_CHANNELS, num_warps=4, num_stages=2,
        **launch_options(device),
    )  # fmt: skip
    size = min(_IMAGES, triton.next_power_of_2(images))
    _add[(1,)](parts, orth, margin, images, IMAGES=size, num_warps=1, **launch_options(device))
    return orth, margin, d_orth, d_margin
