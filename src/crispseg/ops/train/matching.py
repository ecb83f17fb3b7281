"""Cosines of every pixel with every prototype, and the best of each class, with gradients.

On CUDA the best cosines of bfloat16 descriptors are one Triton kernel, and their gradients another; elsewhere (and
without Triton, in an exported program, or with CRISPSEG_OPS_BACKEND=torch) they are torch's own operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.common.precision import widened, without_autocast
from crispseg.ops.dispatch import kernels_wanted
from crispseg.ops.infer.pixel_attention import MOST_CHANNELS

_MOST_PROTOTYPES = 32  # of a class
_MOST_CLASSES = 64


@without_autocast
def match(descriptors: Tensor, prototypes: Tensor) -> Tensor:
    """Cosines of every pixel with every prototype: (B, d, h, w) x (B, classes, K, d) -> (B, classes, K, h, w)."""
    descriptors = functional.normalize(widened(descriptors), dim=1)
    prototypes = widened(prototypes)
    cosines = torch.bmm(prototypes.flatten(1, 2), descriptors.flatten(2))  # (B, classes * K, h * w)
    return cosines.view(*prototypes.shape[:3], *descriptors.shape[-2:])


def best_match(descriptors: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of `match` for each class, and the index of its prototype: (B, classes, h, w) each."""
    if _use_kernels(descriptors, prototypes):
        pixels = descriptors.flatten(2).transpose(1, 2)  # (B, L, d)
        size = descriptors.shape[-2:]
        best, winners, _ = _best_cosines(pixels, prototypes)
        return best.unflatten(-1, size), winners.unflatten(-1, size)
    best, winners = match(descriptors, prototypes).max(2)
    return best, winners


def _use_kernels(descriptors: Tensor, prototypes: Tensor) -> bool:
    classes, count, width = prototypes.shape[1:]
    return (
        descriptors.is_cuda
        # Not in float16, which gradients of single pixels are too small for.
        and descriptors.dtype == torch.bfloat16
        and prototypes.dtype == torch.float32
        and width <= MOST_CHANNELS
        and count <= _MOST_PROTOTYPES
        and classes <= _MOST_CLASSES
        and kernels_wanted()
    )


# Registered as operators so that torch.compile takes them as they are; their bodies import Triton when first run.


@torch.library.custom_op(
    "crispseg::best_cosines", mutates_args=(), schema="(Tensor x, Tensor prototypes) -> (Tensor, Tensor, Tensor)"
)
def _best_cosines(x: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from crispseg.ops.train import matching_kernels as kernels

    with torch.cuda.device_of(x):
        return kernels.best(x, prototypes)


@_best_cosines.register_fake
def _(x: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    size = (x.shape[0], prototypes.shape[1], x.shape[1])
    norms = x.new_empty(x.shape[:2], dtype=torch.float32)
    return x.new_empty(size, dtype=torch.float32), x.new_empty(size, dtype=torch.uint8), norms


@torch.library.custom_op(
    "crispseg::best_cosines_backward",
    mutates_args=(),
    schema="(Tensor g, Tensor x, Tensor prototypes, Tensor best, Tensor winners, Tensor norms) -> (Tensor, Tensor)",
)
def _best_cosines_backward(
    g: Tensor, x: Tensor, prototypes: Tensor, best: Tensor, winners: Tensor, norms: Tensor
) -> tuple[Tensor, Tensor]:
    from crispseg.ops.train import matching_kernels as kernels

    with torch.cuda.device_of(x):
        return kernels.best_back(g, x, prototypes, best, winners, norms)


@_best_cosines_backward.register_fake
def _(g: Tensor, x: Tensor, prototypes: Tensor, best: Tensor, winners: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), prototypes.new_empty(prototypes.shape)


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*inputs, *output)


def _differentiate(ctx: Any, g: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return _best_cosines_backward(g, *ctx.saved_tensors)


_best_cosines.register_autograd(_differentiate, setup_context=_remember)
