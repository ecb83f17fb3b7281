"""Cosines of every pixel with every prototype, and the best of each class or a smooth maximum, with gradients.

Those of bfloat16 descriptors are one Triton kernel, and their gradients another.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

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
@operator("best_match", dtypes=(torch.bfloat16,), of=1)
def best_match(descriptors: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of `match` for each class, and the index of its prototype: (B, classes, h, w) each."""
    best, winners = match(descriptors, prototypes).max(2)
    return best, winners


@operator("soft_match", dtypes=(torch.bfloat16,), of=1)
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
