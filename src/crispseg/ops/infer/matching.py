"""Class tokens from the image, prototypes from tokens, and each pixel's score of each class. Inference only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.common.precision import widened
from crispseg.ops.dispatch import ANY_GPU, operator, too_many
from crispseg.ops.infer.pixel_attention import MOST_CHANNELS

MOST_MIXED = 16384  # weights, or numbers of the bank, of one class: a program holds them all
_LEAST_NORM = 1e-12  # as functional.normalize has it


@operator("best_cosines", gradients="none", room=ANY_GPU)
def best_cosines(descriptors: Tensor, prototypes: Tensor, scale: float) -> Tensor:
    """scale x the largest cosine of each descriptor (B, L, d) with a class's prototypes (B, classes, K, d).

    Returns (B, classes, L), in float32 at least. The prototypes need not be normalised.
    """
    classes, count = prototypes.shape[1:3]
    descriptors, prototypes = widened(descriptors), functional.normalize(widened(prototypes), dim=-1)
    factor = scale / descriptors.norm(dim=-1).clamp(min=_LEAST_NORM)  # (B, L)
    products = prototypes.flatten(1, 2) @ descriptors.transpose(1, 2)  # (B, classes * K, L)
    return products.unflatten(1, (classes, count)).amax(2) * factor[:, None]


@best_cosines.unless
def _(descriptors: Tensor, *rest: Any) -> str | None:
    return too_many(descriptors.shape[2], MOST_CHANNELS, "channels")


@operator("grouped_product", gradients="none", room=ANY_GPU)
def grouped_product(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """x (B, classes, in) through each class's own weight (classes, in, out) and bias (classes, out), or one for all."""
    groups = weight.shape[0]
    rows = x.flatten(0, 1)[None] if groups == 1 else x.transpose(0, 1)  # (groups, rows, in)
    y = torch.baddbmm(bias[:, None], rows, weight)
    y = y.relu_() if relu else y
    return y.view(*x.shape[:2], -1) if groups == 1 else y.transpose(0, 1)


@operator("max_and_mean", gradients="none", room=ANY_GPU)
def max_and_mean(x: Tensor) -> Tensor:
    """Over the pixels of x (B, L, D): the maximum of the first half of the channels, the mean of the others."""
    for_max, for_mean = x.chunk(2, dim=-1)
    return torch.cat([for_max.amax(1), for_mean.mean(1)], dim=-1)


@operator("mix_candidates", gradients="none", room=ANY_GPU)
def mix_candidates(x: Tensor, weight: Tensor, bias: Tensor, bank: Tensor) -> Tensor:
    """Each class's candidates, of a bank (classes, M, D), weighted by the softmax over M of x weight + bias, for x
    (B, in), weight (in, classes x M), a view of (classes x M, in), and bias (classes x M): (B, classes, D)."""
    logits = torch.addmm(bias, x, weight).unflatten(-1, bank.shape[:2])
    return torch.einsum("bcm,cmd->bcd", logits.softmax(-1), bank)


@mix_candidates.unless
def _(x: Tensor, weight: Tensor, bias: Tensor, bank: Tensor) -> str | None:
    return too_many(bank.shape[1] * max(x.shape[1], bank.shape[2]), MOST_MIXED, "weights of a class")
