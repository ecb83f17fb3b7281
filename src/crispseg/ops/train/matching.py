"""Cosines of every pixel with every prototype, and the best of each class, with gradients.

The best cosines of bfloat16 descriptors are one Triton kernel, and their gradients another.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.common.custom import all_there_is, custom_op, differentiable
from crispseg.ops.common.precision import widened, without_autocast
from crispseg.ops.dispatch import operator, too_many
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


# Not in float16, which gradients of single pixels are too small for.
@operator("best_match", dtypes=(torch.bfloat16,), of=lambda descriptors, prototypes: (descriptors,))
def best_match(descriptors: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of `match` for each class, and the index of its prototype: (B, classes, h, w) each."""
    best, winners = match(descriptors, prototypes).max(2)
    return best, winners


@best_match.unless
def _(descriptors: Tensor, prototypes: Tensor) -> str | None:
    classes, count, width = prototypes.shape[1:]
    if prototypes.dtype != torch.float32:
        return "prototypes in half precision"
    limits = (
        (width, MOST_CHANNELS, "channels"),
        (count, _MOST_PROTOTYPES, "prototypes"),
        (classes, _MOST_CLASSES, "classes"),
    )
    return next(filter(None, (too_many(*limit) for limit in limits)), None)


@best_match.kernel
def _(descriptors: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    size = descriptors.shape[-2:]
    best, winners, _ = _best_cosines(descriptors.flatten(2).transpose(1, 2), prototypes)  # of (B, L, d)
    return best.unflatten(-1, size), winners.unflatten(-1, size)


def _like_best(x: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    size = (x.shape[0], prototypes.shape[1], x.shape[1])
    norms = x.new_empty(x.shape[:2], dtype=torch.float32)
    return x.new_empty(size, dtype=torch.float32), x.new_empty(size, dtype=torch.uint8), norms


@custom_op("best_cosines", like=_like_best)
def _best_cosines(x: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from crispseg.ops.train import matching_kernels as kernels

    return kernels.best(x, prototypes)


@custom_op(
    "best_cosines_backward",
    like=lambda g, x, prototypes, *rest: (x.new_empty(x.shape), prototypes.new_empty(prototypes.shape)),
)
def _best_cosines_backward(
    g: Tensor, x: Tensor, prototypes: Tensor, best: Tensor, winners: Tensor, norms: Tensor
) -> tuple[Tensor, Tensor]:
    from crispseg.ops.train import matching_kernels as kernels

    return kernels.best_back(g, x, prototypes, best, winners, norms)


def _formula(x: Tensor, prototypes: Tensor) -> Tensor:
    return match(x.transpose(1, 2)[..., None], prototypes).amax(2)[..., 0]


differentiable(_best_cosines, _best_cosines_backward, best_match, remember=all_there_is, formula=_formula)
