"""A coarser map added to a finer one, and scores resized.

Every function is its formula in plain torch; on CUDA a Triton kernel takes its place. `add_resized` and `resize_scores`
have gradients, the others are for inference only. All resizing is bilinear, pixel centres kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.dispatch import kernels_apply, kernels_wanted

_MOST_TIMES = 8  # larger along an axis; the gradients' kernels would take long to compile


def add_resized(finer: Tensor, coarser: Tensor) -> Tensor:
    """finer (B, C, H, W) + coarser (B, C, h, w) resized; in one kernel if they are of one precision. Under autocasting
    torch would return float32, the kernel does not."""
    size = finer.shape[-2:]
    if _use_kernels(coarser, size) and finer.dtype == coarser.dtype:
        return _resize_add(coarser.permute(0, 2, 3, 1), finer.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return finer + _interpolated(coarser, size)


def resize_scores(x: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """x (B, C, h, w) resized to (B, C, *size): for few channels in float32, each a plane of its own, in training."""
    if (
        x.is_cuda
        and x.dtype == torch.float32
        and x.is_contiguous()
        and torch.is_grad_enabled()
        and x.requires_grad
        and _kernels_can(x, size)
    ):
        return _resize_planes(x, size[0], size[1])
    return _interpolated(x, size)


def _interpolated(x: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    return functional.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)


def _use_kernels(x: Tensor, size: tuple[int, int] | torch.Size) -> bool:
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and _kernels_can(x, size)


def _kernels_can(x: Tensor, size: tuple[int, int] | torch.Size) -> bool:
    within = all(high <= _MOST_TIMES * low for low, high in zip(x.shape[-2:], size, strict=True))
    return within and kernels_wanted()


def resize_add(finer: Tensor, coarser: Tensor) -> Tensor:
    """finer (B, H, W, C) + coarser (B, h, w, C) resized to (H, W), pixel centres kept."""
    if kernels_apply(finer, coarser):
        from crispseg.ops.maps import resizing_kernels as kernels

        return kernels.resize_add(finer, coarser)
    return finer + resized(coarser, finer.shape[1:3])


def resized(x: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """x (B, h, w, C) resized to (B, *size, C), by torch."""
    return _interpolated(x.permute(0, 3, 1, 2), size).permute(0, 2, 3, 1)


def upsample(
    scores: Tensor, low: tuple[int, int], size: tuple[int, int] | torch.Size, quarters: bool = False
) -> Tensor:
    """Scores (B, K, h * w) of a map of size `low` = (h, w), resized to (B, K, *size), bilinear, pixel centres kept.

    With `quarters` the four scores of each 2x2 square lie side by side, square after square.
    """
    if scores.is_cuda and scores.dtype == torch.float32 and kernels_wanted() and not scores.requires_grad:
        from crispseg.ops.maps import resizing_kernels as kernels

        return kernels.upsample(scores, low, (size[0], size[1]), quarters)
    height, width = low
    if quarters:
        squares = scores.unflatten(-1, (height // 2, width // 2, 2, 2)).transpose(-3, -2)
        scores = squares.reshape(*scores.shape[:2], height * width)
    return _interpolated(scores.unflatten(-1, (height, width)), size)


# Registered as operators so that torch.compile takes them as they are; their bodies import Triton when first run.


@torch.library.custom_op("crispseg::resize_add", mutates_args=(), schema="(Tensor x, Tensor finer) -> Tensor")
def _resize_add(x: Tensor, finer: Tensor) -> Tensor:
    """x (B, h, w, C) resized, plus `finer` (B, H, W, C)."""
    from crispseg.ops.maps import resizing_kernels as kernels

    with torch.cuda.device_of(x):
        return kernels.resize_add(finer, x)


@_resize_add.register_fake
def _(x: Tensor, finer: Tensor) -> Tensor:
    return x.new_empty(finer.shape)


@torch.library.custom_op(
    "crispseg::resize_backward", mutates_args=(), schema="(Tensor g, int height, int width) -> Tensor"
)
def _resize_backward(g: Tensor, height: int, width: int) -> Tensor:
    from crispseg.ops.maps import resizing_gradients as kernels

    with torch.cuda.device_of(g):
        return kernels.shrink(g, (height, width))


@_resize_backward.register_fake
def _(g: Tensor, height: int, width: int) -> Tensor:
    return g.new_empty(g.shape[0], height, width, g.shape[3])


@torch.library.custom_op(
    "crispseg::resize_planes", mutates_args=(), schema="(Tensor x, int height, int width) -> Tensor"
)
def _resize_planes(x: Tensor, height: int, width: int) -> Tensor:
    from crispseg.ops.maps import resizing_kernels as kernels

    with torch.cuda.device_of(x):
        return kernels.upsample(x.flatten(2), (x.shape[2], x.shape[3]), (height, width), False)


@_resize_planes.register_fake
def _(x: Tensor, height: int, width: int) -> Tensor:
    return x.new_empty(*x.shape[:2], height, width)


@torch.library.custom_op(
    "crispseg::resize_planes_backward", mutates_args=(), schema="(Tensor g, int height, int width) -> Tensor"
)
def _resize_planes_backward(g: Tensor, height: int, width: int) -> Tensor:
    from crispseg.ops.maps import resizing_gradients as kernels

    with torch.cuda.device_of(g):
        return kernels.shrink_planes(g, (height, width))


@_resize_planes_backward.register_fake
def _(g: Tensor, height: int, width: int) -> Tensor:
    return g.new_empty(*g.shape[:2], height, width)


def _remember_map(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.size = inputs[0].shape[1:3]


def _differentiate_map(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    coarse = _resize_backward(g, *ctx.size) if ctx.needs_input_grad[0] else None
    return coarse, g


def _remember_planes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.size = inputs[0].shape[2:]


def _differentiate_planes(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return _resize_planes_backward(g, *ctx.size), None, None


_resize_add.register_autograd(_differentiate_map, setup_context=_remember_map)
_resize_planes.register_autograd(_differentiate_planes, setup_context=_remember_planes)
