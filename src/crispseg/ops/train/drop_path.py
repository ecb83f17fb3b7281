"""A residual branch added to its map and dropped for whole samples: one pass over the maps on CUDA, and one back."""

from __future__ import annotations

import torch
from torch import Tensor

from crispseg.ops.dispatch import operator

_MOST_SAMPLES = 65535  # that a launch can number


@operator("add_kept", of=2)
def add_kept(x: Tensor, branch: Tensor, drawn: Tensor, rate: float) -> Tensor:
    """x + branch / (1 - rate) for samples whose number in `drawn` (B,) is at least `rate`, x for the others."""
    return torch.addcmul(x, branch, kept_scale(x, drawn, rate))


@add_kept.unless
def _(x: Tensor, branch: Tensor, drawn: Tensor, rate: float) -> str | None:
    if x.dtype != branch.dtype or x.shape != branch.shape:
        return "map and branch differ"
    if not x.is_contiguous() or not branch.is_contiguous():
        return "not contiguous"
    return None if x.numel() > 0 and x.shape[0] <= _MOST_SAMPLES else "no samples, or too many"


def kept_scale(x: Tensor, drawn: Tensor, rate: float) -> Tensor:
    """Per sample, for products with x: zero, or what keeps the mean."""
    return ((drawn >= rate).to(x.dtype) / (1.0 - rate)).view(-1, *[1] * (x.dim() - 1))


def plain_gradients(g: Tensor, drawn: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Of the map and its branch, in plain torch."""
    return g, g * kept_scale(g, drawn, rate)
