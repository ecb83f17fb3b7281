"""Cosines of every pixel with every prototype, and the best of each class or a smooth maximum, with gradients.

Those of bfloat16 descriptors are one Triton kernel, and their gradients another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.common.custom import all_there_is, custom_op, differentiable
from crispseg.ops.common.precision import widened, without_autocast
from crispseg.ops.dispatch import Operator, operator, too_many
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


@operator("soft_match", dtypes=(torch.bfloat16,), of=lambda descriptors, *rest: (descriptors,))
def soft_match(descriptors: Tensor, prototypes: Tensor, sharpness: Tensor) -> Tensor:
    """A smooth maximum of `match` for each class, log(sum_k exp(b c_k)) / b, whose sharpness b is a number in float32,
    more than 0: (B, classes, h, w)."""
    return torch.logsumexp(match(descriptors, prototypes) * sharpness, 2) / sharpness


@best_match.unless
@soft_match.unless
def _(descriptors: Tensor, prototypes: Tensor, *rest: Tensor) -> str | None:
    classes, count, width = prototypes.shape[1:]
    if any(x.dtype != torch.float32 for x in (prototypes, *rest)):
        return "prototypes or sharpness in half precision"
    limits = (
        (width, MOST_CHANNELS, "channels"),
        (count, _MOST_PROTOTYPES, "prototypes"),
        (classes, _MOST_CLASSES, "classes"),
    )
    return next(filter(None, (too_many(*limit) for limit in limits)), None)


@best_match.kernel
def _(descriptors: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    size = descriptors.shape[-2:]
    best, winners, _ = _best_match(descriptors.flatten(2).transpose(1, 2), prototypes, None)  # of (B, L, d)
    return best.unflatten(-1, size), winners.unflatten(-1, size)


@soft_match.kernel
def _(descriptors: Tensor, prototypes: Tensor, sharpness: Tensor) -> Tensor:
    values, _, _ = _soft_match(descriptors.flatten(2).transpose(1, 2), prototypes, sharpness)
    return values.unflatten(-1, descriptors.shape[-2:])


def _formula(x: Tensor, prototypes: Tensor, sharpness: Tensor | None) -> Tensor:
    x = x.transpose(1, 2)[..., None]
    best = match(x, prototypes).amax(2) if sharpness is None else soft_match.formula(x, prototypes, sharpness)
    return best[..., 0]


def _like_best(x: Tensor, prototypes: Tensor, sharpness: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    values = x.new_empty((x.shape[0], prototypes.shape[1], x.shape[1]), dtype=torch.float32)
    each = (*prototypes.shape[:3], x.shape[1])
    kept = torch.empty_like(values, dtype=torch.uint8) if sharpness is None else values.new_empty(each)
    return values, kept, x.new_empty(x.shape[:2], dtype=torch.float32)


def _like_gradients(g: Tensor, x: Tensor, prototypes: Tensor, *rest: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), prototypes.new_empty(prototypes.shape), prototypes.new_empty(())


def _cosines(name: str, operator: Operator[..., Any]) -> Any:
    """Values, winners or all cosines, and norms of the pixels (B, L, d); with a sharpness or without."""

    @custom_op(name, like=_like_best)
    def forward(x: Tensor, prototypes: Tensor, sharpness: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        from crispseg.ops.train import matching_kernels as kernels

        return kernels.best(x, prototypes, sharpness)

    @custom_op(f"{name}_backward", like=_like_gradients)
    def backward(
        g: Tensor, x: Tensor, prototypes: Tensor, sharpness: Tensor | None, values: Tensor, kept: Tensor, norms: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        from crispseg.ops.train import matching_kernels as kernels

        return kernels.best_back(g, x, prototypes, sharpness, values, kept, norms)

    differentiable(forward, backward, operator, remember=all_there_is, formula=_formula)
    return forward


_best_match, _soft_match = _cosines("best_match", best_match), _cosines("soft_match", soft_match)
