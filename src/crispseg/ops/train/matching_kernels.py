"""Triton kernels of `matching.py`: descriptors are read once in each direction, and never widened in memory.

Hard and soft matching are the same kernels: where a sharpness is given, it is soft. Soft ones keep all cosines, in
float32 as they are multiplied by the sharpness; their gradients then agree with each other however weights are rounded.

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

from crispseg.ops.common.custom import all_there_is, custom_op, differentiable
from crispseg.ops.common.hardware import padded
from crispseg.ops.common.rounding import like, multiply
from crispseg.ops.common.tokens_and_pixels import LOG2_E, AttentionTiles, add_spans, inside, product
from crispseg.ops.dispatch import Operator
from crispseg.ops.infer.pixel_attention import MOST_CHANNELS
from crispseg.ops.train import matching

_TILES = AttentionTiles(64, 4, 2, 3)
_COLUMNS = 64  # channels that a program of the gradients holds
_SOFT_REGISTERS = 168  # of those of soft matching, so that as many run at once as in hard matching
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
def _of_all(index, one, where, count, length):
    """The places of pixels' cosines with all prototypes of some classes: (pixels, prototypes, classes)."""
    return (index[None, None, :].to(tl.int64) * count + one[None, :, None]) * length + where[:, None, None]


@triton.jit
def _best_kernel(
    x, prototypes, best, kept, norms, sharpness, length, span, classes, count,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, CLASSES: tl.constexpr, COUNT: tl.constexpr,
    PIXELS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """For a span of the pixels and some classes: the best cosine, which prototype it is with, and pixels' norms; or,
    with a sharpness b, log(sum_k exp(b c_k)) / b and all cosines c_k."""
    first, image = tl.program_id(1) * CLASSES, tl.program_id(2).to(tl.int64)
    column, index, one = tl.arange(0, COLUMNS), first + tl.arange(0, CLASSES), tl.arange(0, COUNT)
    used = inside(column, WIDTH, WIDTH == COLUMNS)
    there, _, _, high, low = _prototypes(
        prototypes, x, first, image, classes, count, column, WIDTH, WIDTH == COLUMNS, CLASSES, COUNT
    )  # fmt: skip
    begin = tl.program_id(0) * span
    x += (image * length + begin) * WIDTH
    norms += image * length + begin
    best += image * classes * length + begin
    kept += image * classes * (1 if sharpness is None else count) * length + begin
    steep = 0.0 if sharpness is None else tl.load(sharpness) * LOG2_E
    last = tl.minimum(length - begin, span)
    for start in range(0, last, PIXELS):
        where = start + tl.arange(0, PIXELS)
        here = inside(where, last, EVEN)
        some = tl.load(x + where[:, None] * WIDTH + column[None, :], mask=here[:, None] & used[None, :], other=0.0)
        scores = multiply(some, tl.trans(high), product(some, tl.trans(low)))
        scores = tl.where(there[None, :], scores, float("-inf"))
        scores = tl.reshape(scores, (PIXELS, COUNT, CLASSES))
        wide = some.to(tl.float32)
        norm = tl.maximum(tl.sqrt(tl.sum(wide * wide, 1)), _LEAST_NORM)
        place = index[None, :].to(tl.int64) * length + where[:, None]
        keep = here[:, None] & (index < classes)[None, :]
        if sharpness is None:
            highest, winner = tl.max(scores, 1, return_indices=True)
            value = highest / norm[:, None]
            tl.store(kept + place, winner.to(tl.uint8), mask=keep)
        else:
            cosines = scores / norm[:, None, None]
            highest = tl.max(cosines, 1)
            value = highest + tl.log2(tl.sum(tl.exp2((cosines - highest[:, None, :]) * steep), 1)) / steep
            among = keep[:, None, :] & (one < count)[None, :, None]
            tl.store(kept + _of_all(index, one, where, count, length), cosines, mask=among)
        tl.store(best + place, value, mask=keep)
        tl.store(norms + where, norm, mask=here)


@triton.jit
def _best_gradients(
    g, x, prototypes, best, kept, norms, dx, parts, sharpness, sharper, length, span, classes, count,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, CLASSES: tl.constexpr, COUNT: tl.constexpr,
    PIXELS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """With n the norm and G each winner's gradient over n: dP = G^T x, dx = G P - x (x . G P) / n^2. As the winner's
    product with x is n times its cosine, x . G P needs no other channels than the program's own. In soft matching all
    win, by their share p_k of the softmax of b c_k; the value v has the derivative sum_k p_k (c_k - v) / b to b.

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
    g, best = g + offset, best + offset
    kept += image * classes * (1 if sharpness is None else count) * length + begin
    steep = 0.0 if sharpness is None else tl.load(sharpness) * LOG2_E
    last = tl.minimum(length - begin, span)
    d_prototypes = tl.zeros([COUNT * CLASSES, COLUMNS], tl.float32)
    steeper = tl.zeros([PIXELS], tl.float32)
    for start in range(0, last, PIXELS):
        where = start + tl.arange(0, PIXELS)
        here = inside(where, last, EVEN)
        some = tl.load(x + where[:, None] * WIDTH + column[None, :], mask=here[:, None] & used[None, :], other=0.0)
        place = index[None, :].to(tl.int64) * length + where[:, None]
        keep = here[:, None] & (index < classes)[None, :]
        norm = tl.load(norms + where, mask=here, other=1.0)
        value = tl.load(best + place, mask=keep, other=0.0)
        given = tl.load(g + place, mask=keep, other=0.0)
        # Rounded before all else, so that what cancels does so exactly.
        gradient = like(given / norm[:, None], some).to(tl.float32)
        if sharpness is None:
            winner = tl.load(kept + place, mask=keep, other=0).to(tl.int32)
            matched = tl.where(winner[:, None, :] == one[None, :, None], gradient[:, None, :], 0.0)
            turned = gradient * value
        else:
            among = keep[:, None, :] & (one < count)[None, :, None]
            cosines = tl.load(kept + _of_all(index, one, where, count, length), mask=among, other=0.0)
            below = cosines - value[:, None, :]
            share = tl.exp2(tl.where(among, below * steep, float("-inf")))
            matched = like(share * gradient[:, None, :], some).to(tl.float32)
            turned = tl.sum(matched * cosines, 1)
            steeper += tl.sum(given * tl.sum(share * below, 1), 1)
        matched = like(tl.reshape(matched, (PIXELS, COUNT * CLASSES)), some)
        # A norm at its floor is a constant.
        along = tl.where(norm > _LEAST_NORM, tl.sum(turned, 1) / norm, 0.0)
        result = multiply(matched, high, product(matched, low)) - some.to(tl.float32) * along[:, None]
        tl.store(
            dx + where[:, None] * WIDTH + column[None, :], like(result, some), mask=here[:, None] & used[None, :]
        )  # fmt: skip
        d_prototypes = multiply(tl.trans(matched), some, d_prototypes)

    part = image * tl.num_programs(0) + tl.program_id(0)
    tl.store(parts + part * classes * count * WIDTH + places, d_prototypes, mask=filled)
    if sharpness is not None:  # all blocks of channels find the same
        sharper += part * tl.num_programs(1) + tl.program_id(1)
        tl.store(sharper, tl.sum(steeper, 0) * LOG2_E / (steep * BLOCKS))


class MatchingLaunch(NamedTuple):
    """How classes, channels and pixels are dealt out to programs."""

    splits: int  # of the pixels
    groups: int  # of classes
    blocks: int  # of channels
    numbers: tuple[int, int, int, int]
    fixed: dict[str, Any]

    @classmethod
    def of(cls, x: Tensor, prototypes: Tensor, most: int) -> MatchingLaunch:
        _, length, width = x.shape
        classes, count = prototypes.shape[1:3]
        each = triton.next_power_of_2(count)
        group = max(1, min(_ROWS // each, triton.next_power_of_2(classes)))
        group = max(group, 16 // each)  # a product has sixteen rows at least
        groups = triton.cdiv(classes, group)
        columns = min(most, padded(width))
        blocks = triton.cdiv(width, columns)
        span, splits, fixed = _TILES.cut(x, groups * blocks)
        fixed |= {"WIDTH": width, "COLUMNS": columns, "CLASSES": group, "COUNT": each}
        return cls(splits, groups, blocks, (length, span, classes, count), fixed)


def _formula(x: Tensor, prototypes: Tensor, sharpness: Tensor | None) -> Tensor:
    x = x.transpose(1, 2)[..., None]
    best = (
        matching.match(x, prototypes).amax(2)
        if sharpness is None
        else matching.soft_match.formula(x, prototypes, sharpness)
    )
    return best[..., 0]


def _like_best(x: Tensor, prototypes: Tensor, sharpness: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    values = x.new_empty((x.shape[0], prototypes.shape[1], x.shape[1]), dtype=torch.float32)
    each = (*prototypes.shape[:3], x.shape[1])
    kept = torch.empty_like(values, dtype=torch.uint8) if sharpness is None else values.new_empty(each)
    return values, kept, x.new_empty(x.shape[:2], dtype=torch.float32)


def _like_gradients(g: Tensor, x: Tensor, prototypes: Tensor, *rest: Tensor | None) -> list[Tensor]:
    return [x.new_empty(x.shape), prototypes.new_empty(prototypes.shape), prototypes.new_empty(())]


def _cosines(name: str, operator: Operator[..., Any]) -> Any:
    """Of pixels (B, L, d) with prototypes (B, classes, K, d): the best ones and who won, (B, classes, L), and the norms
    of x, (B, L). With a sharpness the smooth maxima, and all cosines, (B, classes, K, L), for who won."""

    @custom_op(name, like=_like_best)
    def forward(x: Tensor, prototypes: Tensor, sharpness: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        x, prototypes = x.contiguous(), prototypes.contiguous()
        launch = MatchingLaunch.of(x, prototypes, MOST_CHANNELS)
        values, kept, norms = _like_best(x, prototypes, sharpness)
        _best_kernel[(launch.splits, launch.groups, len(x))](
            x, prototypes, values, kept, norms, sharpness, *launch.numbers, **launch.fixed
        )  # fmt: skip
        return values, kept, norms

    @custom_op(f"{name}_backward", like=_like_gradients)
    def backward(
        g: Tensor, x: Tensor, prototypes: Tensor, sharpness: Tensor | None, values: Tensor, kept: Tensor, norms: Tensor
    ) -> list[Tensor]:
        """Of x, the prototypes and the sharpness (anything where there is none)."""
        g, x, prototypes = g.contiguous(), x.contiguous(), prototypes.contiguous()
        launch = MatchingLaunch.of(x, prototypes, _COLUMNS)
        dx = x.new_empty(launch.groups, *x.shape)
        parts = torch.empty(len(x), launch.splits, *prototypes.shape[1:], dtype=torch.float32, device=x.device)
        programs = launch.splits, launch.groups * launch.blocks, len(x)
        sharper = None if sharpness is None else parts.new_empty(programs)
        _best_gradients[programs](
            g, x, prototypes, values, kept, norms, dx, parts, sharpness, sharper, *launch.numbers,
            BLOCKS=launch.blocks, maxnreg=None if sharpness is None else _SOFT_REGISTERS, **launch.fixed,
        )  # fmt: skip
        d_prototypes = torch.empty_like(prototypes)
        add_spans(parts, d_prototypes)
        dx = dx.view(x.shape) if launch.groups == 1 else dx.sum(0)
        return [dx, d_prototypes, parts.new_empty(()) if sharper is None else sharper.sum()]

    differentiable(forward, backward, operator, remember=all_there_is, formula=_formula)
    return forward


_best_match = _cosines("best_match", matching.best_match)
_soft_match = _cosines("soft_match", matching.soft_match)


@matching.best_match.kernel
def _(descriptors: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    size = descriptors.shape[-2:]
    best, winners, _ = _best_match(descriptors.flatten(2).transpose(1, 2), prototypes, None)  # of (B, L, d)
    return best.unflatten(-1, size), winners.unflatten(-1, size)


@matching.soft_match.kernel
def _(descriptors: Tensor, prototypes: Tensor, sharpness: Tensor) -> Tensor:
    values, _, _ = _soft_match(descriptors.flatten(2).transpose(1, 2), prototypes, sharpness)
    return values.unflatten(-1, descriptors.shape[-2:])
