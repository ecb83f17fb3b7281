# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Triton kernels of `cross_entropy.py`: logits are read once in each direction, and no probability is stored.

Every program leaves its part of the sum; a second kernel adds the parts in a fixed order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.custom import custom_op, differentiable
from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.hardware import multiprocessors
from crispseg.ops.train.cross_entropy import summed_cross_entropy

_ELEMENTS, _WARPS = 4096, 4  # of a block: pixels x classes
_PROGRAMS = 8  # of a multiprocessor, which each take many blocks
_PARTS = 1024  # added at a time


@triton.jit
def _block(
    logits, target, block, across, length, image_stride, class_stride, pixel_stride, ignored,
    CLASSES: tl.constexpr, PADDED: tl.constexpr, PIXELS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Some pixels of one image: their logits (classes, pixels) less the largest, and the logarithm of the sum of these
    ones' exponentials; the labels, and which are not ignored; and where the logits lie."""
    image, start = (block // across).to(tl.int64), block % across * PIXELS
    pixel, one = tl.arange(0, PIXELS), tl.arange(0, PADDED)
    here = tl.full((PIXELS,), True, tl.int1) if EVEN else start + pixel < length
    label = tl.load(target + image * length + start + pixel, mask=here, other=ignored).to(tl.int32)
    inside = here[None, :] & (one < CLASSES)[:, None]
    base = image * image_stride + start.to(tl.int64) * pixel_stride
    places = base + one[:, None].to(tl.int64) * class_stride + pixel[None, :] * pixel_stride
    x = tl.load(logits + places, mask=inside, other=float("-inf")).to(tl.float32)
    x -= tl.max(x, 0)[None, :]
    return x, tl.log(tl.sum(tl.exp(x), 0)), label, label != ignored, places, inside


@triton.jit
def _sum_parts(
    logits, target, totals, counts, blocks, across, length, image_stride, class_stride, pixel_stride, ignored,
    smoothing, CLASSES: tl.constexpr, PADDED: tl.constexpr, PIXELS: tl.constexpr, EVEN: tl.constexpr,
    SMOOTHED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program's pixels: the sum of their losses, and how many count. A label of no class makes the loss NaN."""
    after_the_kernel_before(DEPENDENT)
    one = tl.arange(0, PADDED)
    total, count = tl.zeros((PIXELS,), tl.float32), tl.zeros((PIXELS,), tl.int32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        x, logarithm, label, valid, _, _ = _block(
            logits, target, block, across, length, image_stride, class_stride, pixel_stride, ignored,
            CLASSES, PADDED, PIXELS, EVEN,
        )  # fmt: skip
        own = tl.sum(tl.where(one[:, None] == label[None, :], x, 0.0), 0)
        if SMOOTHED:
            mean = tl.sum(tl.where((one < CLASSES)[:, None], x, 0.0), 0) / CLASSES
            own = (1 - smoothing) * own + smoothing * mean
        loss = logarithm - own
        loss = tl.where((label >= 0) & (label < CLASSES), loss, float("nan"))
        total += tl.where(valid, loss, 0.0)
        count += valid.to(tl.int32)
    tl.store(totals + tl.program_id(0), tl.sum(total, 0))
    tl.store(counts + tl.program_id(0), tl.sum(count, 0))


@triton.jit
def _add(totals, counts, total, count, parts, PARTS: tl.constexpr, DEPENDENT: tl.constexpr):
    after_the_kernel_before(DEPENDENT)
    losses, pixels = tl.zeros((PARTS,), tl.float32), tl.zeros((PARTS,), tl.int64)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        losses += tl.load(totals + part, mask=part < parts, other=0.0)
        pixels += tl.load(counts + part, mask=part < parts, other=0)
    tl.store(total, tl.sum(losses, 0))
    tl.store(count, tl.sum(pixels, 0))


@triton.jit
def _gradients(
    gradient, logits, target, out, blocks, across, length, image_stride, class_stride, pixel_stride, ignored, smoothing,
    CLASSES: tl.constexpr, PADDED: tl.constexpr, PIXELS: tl.constexpr, EVEN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Probabilities less what they should be, times the gradient of the sum; `out` lies as the logits do."""
    after_the_kernel_before(DEPENDENT)
    one, factor = tl.arange(0, PADDED), tl.load(gradient).to(tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        x, logarithm, label, valid, places, inside = _block(
            logits, target, block, across, length, image_stride, class_stride, pixel_stride, ignored,
            CLASSES, PADDED, PIXELS, EVEN,
        )  # fmt: skip
        d = tl.exp(x - logarithm[None, :]) - smoothing / CLASSES
        d -= tl.where(one[:, None] == label[None, :], 1 - smoothing, 0.0)
        d = tl.where(valid[None, :], d * factor, 0.0)
        tl.store(out + places, d.to(out.dtype.element_ty), mask=inside)


class _LossLaunch(NamedTuple):
    """How pixels are dealt out to programs."""

    programs: int
    numbers: tuple[int, ...]
    fixed: dict[str, Any]

    @classmethod
    def of(cls, logits: Tensor) -> _LossLaunch:
        batch, classes, height, width = logits.shape
        padded = triton.next_power_of_2(classes)
        pixels, length = max(16, _ELEMENTS // padded), height * width
        across = triton.cdiv(length, pixels)
        programs = min(batch * across, _PROGRAMS * multiprocessors(logits.device))
        class_stride, pixel_stride = (length, 1) if logits.is_contiguous() else (1, classes)
        numbers = (batch * across, across, length, classes * length, class_stride, pixel_stride)
        fixed = {
            "CLASSES": classes, "PADDED": padded, "PIXELS": pixels, "EVEN": length % pixels == 0,
            "num_warps": _WARPS, **launch_options(logits.device),
        }  # fmt: skip
        return cls(programs, numbers, fixed)


@summed_cross_entropy.kernel
def _(logits: Tensor, target: Tensor, ignored: int, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    evenly = logits.is_contiguous() or logits.is_contiguous(memory_format=torch.channels_last)
    return _forward(logits if evenly else logits.contiguous(), target, ignored, smoothing)


def _two_numbers(logits: Tensor, target: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return logits.new_empty((), dtype=torch.float32), target.new_empty(())


@custom_op("cross_entropy", like=_two_numbers)
def _forward(logits: Tensor, target: Tensor, ignored: int, smoothing: float) -> tuple[Tensor, Tensor]:
    """Of logits (B, C, H, W), contiguous or channels last, and labels (B, H, W): the sum of losses, in float32, and the
    number of pixels, int64."""
    launch, device = _LossLaunch.of(logits), logits.device
    totals = torch.empty(launch.programs, dtype=torch.float32, device=device)
    counts = torch.empty(launch.programs, dtype=torch.int32, device=device)
    loss, count = _two_numbers(logits, target)
    _sum_parts[(launch.programs,)](
        logits, target.contiguous(), totals, counts, *launch.numbers, ignored, smoothing,
        SMOOTHED=smoothing != 0, **launch.fixed,
    )  # fmt: skip
    _add[(1,)](totals, counts, loss, count, launch.programs, PARTS=_PARTS, num_warps=4, **launch_options(device))
    return loss, count


@custom_op("cross_entropy_backward", like=lambda g, logits, *rest: torch.empty_like(logits))
def _backward(gradient: Tensor, logits: Tensor, target: Tensor, ignored: int, smoothing: float) -> Tensor:
    """Of the logits, given that of the sum of losses."""
    launch = _LossLaunch.of(logits)
    out = torch.empty_like(logits)
    _gradients[(launch.programs,)](
        gradient, logits, target.contiguous(), out, *launch.numbers, ignored, smoothing, **launch.fixed
    )  # fmt: skip
    return out


differentiable(_forward, _backward, summed_cross_entropy, remember=lambda inputs, outputs: inputs)
