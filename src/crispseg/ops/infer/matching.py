"""Class tokens from the image, prototypes from tokens, and each pixel's score of each class. Inference only.

Every function is its formula in plain torch; on CUDA a Triton kernel takes its place.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.common.precision import widened
from crispseg.ops.dispatch import kernels_apply
from crispseg.ops.infer.pixel_attention import MOST_CHANNELS

_LEAST_NORM = 1e-12  # as functional.normalize has it


def best_cosines(descriptors: Tensor, prototypes: Tensor, scale: float) -> Tensor:
    """scale x the largest cosine of each descriptor (B, L, d) with a class's prototypes (B, classes, K, d).

    Returns (B, classes, L), in float32 at least. The prototypes need not be normalised.
    """
    classes, count = prototypes.shape[1:3]
    if kernels_apply(descriptors, prototypes) and descriptors.shape[2] <= MOST_CHANNELS:
        from crispseg.ops.infer import matching_kernels as kernels

        return kernels.best_cosines(descriptors, prototypes, scale)
    descriptors, prototypes = widened(descriptors), functional.normalize(widened(prototypes), dim=-1)
    factor = scale / descriptors.norm(dim=-1).clamp(min=_LEAST_NORM)  # (B, L)
    products = prototypes.flatten(1, 2) @ descriptors.transpose(1, 2)  # (B, classes * K, L)
    return products.unflatten(1, (classes, count)).amax(2) * factor[:, None]


def grouped_product(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """x (B, classes, in) through each class's own weight (classes, in, out) and bias (classes, out), or one for all."""
    if kernels_apply(x, weight):
        from crispseg.ops.infer import matching_kernels as kernels

        return kernels.grouped_product(x, weight, bias, relu)
    groups = weight.shape[0]
    rows = x.flatten(0, 1)[None] if groups == 1 else x.transpose(0, 1)  # (groups, rows, in)
    y = torch.baddbmm(bias[:, None], rows, weight)
    y = y.relu_() if relu else y
    return y.view(*x.shape[:2], -1) if groups == 1 else y.transpose(0, 1)


def max_and_mean(x: Tensor) -> Tensor:
    """Over the pixels of x (B, L, D): the maximum of the first half of the channels, the mean of the others."""
    if kernels_apply(x):
        from crispseg.ops.infer import matching_kernels as kernels

        return kernels.max_and_mean(x)
    for_max, for_mean = x.chunk(2, dim=-1)
    return torch.cat([for_max.amax(1), for_mean.mean(1)], dim=-1)


def mix_candidates(logits: Tensor, bank: Tensor) -> Tensor:
    """Each class's candidates (classes, M, D), weighted by the softmax of its logits (B, classes x M)."""
    return torch.einsum("bcm,cmd->bcd", logits.unflatten(-1, bank.shape[:2]).softmax(-1), bank)
