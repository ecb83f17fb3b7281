"""Triton kernels of `matching.py`."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.hardware import padded
from crispseg.ops.common.tokens_and_pixels import AttentionTiles, grouped, inside
from crispseg.ops.infer import matching

MATCH = AttentionTiles(64, 4, 3)
_INNER, COLUMNS = 256, 16  # of a grouped product's input and output, in one program at a time


@triton.jit
def _some_classes(
    prototypes, first, image, classes, count,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, GROUP: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Prototypes of GROUP classes, one over their norms, and minus infinity for those that are not there. Classes lie
    side by side: in the layout that products have a thread then holds all scores of a class."""
    row, columns = tl.arange(0, GROUP * COUNT), tl.arange(0, PADDED)
    index, one = first + row % GROUP, row // GROUP
    filled = ((index < classes) & (one < count))[:, None] & inside(columns, WIDTH, WIDTH == PADDED)[None, :]
    place = ((image * classes + index) * count + one)[:, None] * WIDTH + columns[None, :]
    p = tl.load(prototypes + place, mask=filled, other=0.0)
    norm = tl.sqrt(tl.sum(p.to(tl.float32) * p.to(tl.float32), 1))
    return p, 1 / tl.maximum(norm, 1e-12), tl.where(one < count, 0.0, float("-inf"))


@triton.jit
def _store_best(
    x, p, factor, missing, size, out, where, here, first, length, classes,
    PIXELS: tl.constexpr, GROUP: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Some classes' best scores of some pixels."""
    scores = tl.dot(x, tl.trans(p), input_precision="ieee") * factor[None, :] + missing[None, :]
    best = tl.max(tl.reshape(scores, (PIXELS, COUNT, GROUP)), 1) * size[:, None]
    index = first + tl.arange(0, GROUP)
    place = index[None, :].to(tl.int64) * length + where[:, None]
    tl.store(out + place, best, mask=here[:, None] & (index[None, :] < classes))


@triton.jit
def _cosines_kernel(
    descriptors, prototypes, out, scale, length, span, classes, count,
    PIXELS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, GROUP: tl.constexpr, COUNT: tl.constexpr,
    GROUPS: tl.constexpr, EVEN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A span of pixels' scores, GROUP classes at a time; the scores of single prototypes stay in registers."""
    after_the_kernel_before(DEPENDENT)
    image, columns = tl.program_id(1).to(tl.int64), tl.arange(0, PADDED)
    p, factor, missing = _some_classes(prototypes, 0, image, classes, count, WIDTH, PADDED, GROUP, COUNT)
    begin = tl.program_id(0) * span
    descriptors += (image * length + begin) * WIDTH
    out += image * classes * length + begin
    last = tl.minimum(length - begin, span)
    for start in range(0, last, PIXELS):
        where = start + tl.arange(0, PIXELS)
        here = inside(where, last, EVEN)
        used = here[:, None] & inside(columns, WIDTH, WIDTH == PADDED)[None, :]
        x = tl.load(descriptors + where[:, None] * WIDTH + columns[None, :], mask=used, other=0.0)
        wide = x.to(tl.float32)
        size = scale / tl.maximum(tl.sqrt(tl.sum(wide * wide, 1)), 1e-12)
        if GROUPS == 1:
            _store_best(x, p, factor, missing, size, out, where, here, 0, length, classes, PIXELS, GROUP, COUNT)
        else:
            for first in range(0, GROUPS * GROUP, GROUP):
                p, factor, missing = _some_classes(
                    prototypes, first, image, classes, count, WIDTH, PADDED, GROUP, COUNT
                )  # fmt: skip
                _store_best(x, p, factor, missing, size, out, where, here, first, length, classes, PIXELS, GROUP, COUNT)


@matching.best_cosines.kernel
def best_cosines(descriptors: Tensor, prototypes: Tensor, scale: float) -> Tensor:
    batch, length, width = descriptors.shape
    classes, count = prototypes.shape[1:3]
    descriptors, prototypes = descriptors.contiguous(), prototypes.contiguous()
    out = torch.empty(batch, classes, length, dtype=torch.float32, device=descriptors.device)
    held = triton.next_power_of_2(count)
    group = grouped(held, classes)
    span, splits, fixed = MATCH.cut(descriptors)
    _cosines_kernel[(splits, batch)](
        descriptors, prototypes, out, scale, length, span, classes, count,
        WIDTH=width, PADDED=padded(width), GROUP=group, COUNT=held, GROUPS=triton.cdiv(classes, group),
        **fixed, **launch_options(descriptors.device),
    )  # fmt: skip
    return out


@triton.jit
def _grouped_product_kernel(
    x, weight, bias, out, rows, row_step,
    WIDTH: tl.constexpr, OUTER: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr,
    RELU: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    exists, place = inside(columns, OUTER, OUTER % COLUMNS == 0), row * row_step + group
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    after_the_kernel_before(DEPENDENT)
    for start in range(0, WIDTH, INNER):
        k = start + tl.arange(0, INNER)
        within = inside(k, WIDTH, WIDTH % INNER == 0)
        here = within[:, None] & exists[None, :]
        b = tl.load(weight + (group * WIDTH + k[:, None]) * OUTER + columns[None, :], mask=here, other=0.0)
        here = (row < rows)[:, None] & within[None, :]
        a = tl.load(x + place[:, None] * WIDTH + k[None, :], mask=here, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    total += tl.load(bias + group * OUTER + columns, mask=exists, other=0.0).to(tl.float32)[None, :]
    if RELU:
        total = tl.maximum(total, 0.0)
    tl.store(out + place[:, None] * OUTER + columns[None, :], total, mask=(row < rows)[:, None] & exists[None, :])


@matching.grouped_product.kernel
def grouped_product(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    batch, classes, inner = x.shape
    groups, _, outer = weight.shape
    x, weight = x.contiguous(), weight.contiguous()
    out = x.new_empty(batch, classes, outer)
    rows = batch * classes if groups == 1 else batch
    block = min(64, padded(rows))
    _grouped_product_kernel[(triton.cdiv(outer, COLUMNS), groups, triton.cdiv(rows, block))](
        x, weight, bias, out, rows, 1 if groups == 1 else classes,
        WIDTH=inner, OUTER=outer, ROWS=block, INNER=min(_INNER, padded(inner)),
        COLUMNS=COLUMNS, RELU=relu, num_warps=4, **launch_options(x.device),
    )  # fmt: skip
    return out


@triton.jit
def _mix_kernel(
    x, weight, bias, bank, out,
    COUNT: tl.constexpr, ONES: tl.constexpr, INNER: tl.constexpr, INNERS: tl.constexpr, WIDTH: tl.constexpr,
    PADDED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One class's token of one image."""
    one, k, columns = tl.arange(0, ONES), tl.arange(0, INNERS), tl.arange(0, PADDED)
    exists, within, place = one < COUNT, inside(k, INNER, INNER == INNERS), tl.program_id(0) * COUNT + one
    w = tl.load(weight + place[:, None] * INNER + k[None, :], mask=exists[:, None] & within[None, :], other=0.0)
    here = exists[:, None] & inside(columns, WIDTH, WIDTH == PADDED)[None, :]
    candidates = tl.load(bank + place[:, None] * WIDTH + columns[None, :], mask=here, other=0.0).to(tl.float32)
    logits = tl.load(bias + place, mask=exists, other=float("-inf")).to(tl.float32)
    after_the_kernel_before(DEPENDENT)
    image = tl.program_id(1)
    hidden = tl.load(x + image * INNER + k, mask=within, other=0.0).to(tl.float32)
    logits += tl.sum(w.to(tl.float32) * hidden[None, :], 1)
    share = tl.exp(logits - tl.max(logits, 0))
    mixed = tl.sum(candidates * (share / tl.sum(share, 0))[:, None], 0)
    out += (image * tl.num_programs(0) + tl.program_id(0)) * WIDTH
    tl.store(out + columns, mixed, mask=columns < WIDTH)


@matching.mix_candidates.kernel
def mix_candidates(x: Tensor, weight: Tensor, bias: Tensor, bank: Tensor) -> Tensor:
    (batch, inner), (classes, count, width) = x.shape, bank.shape
    out = x.new_empty(batch, classes, width)
    _mix_kernel[(classes, batch)](
        x.contiguous(), weight.t().contiguous(), bias, bank.contiguous(), out,
        COUNT=count, ONES=triton.next_power_of_2(count), INNER=inner, INNERS=triton.next_power_of_2(inner),
        WIDTH=width, PADDED=triton.next_power_of_2(width), num_warps=4, **launch_options(x.device),
    )  # fmt: skip
    return out


@triton.jit
def _pool_kernel(x, out, length, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr):
    after_the_kernel_before(DEPENDENT)
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


@matching.max_and_mean.kernel
def max_and_mean(x: Tensor) -> Tensor:
    batch, length, width = x.shape
    x = x.contiguous()
    out = x.new_empty(batch, width)
    _pool_kernel[(triton.cdiv(width, 16), batch)](
        x, out, length, width, ROWS=128, COLUMNS=16, num_warps=4, **launch_options(x.device)
    )
    return out
