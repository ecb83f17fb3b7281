"""What maps are finished with: a convolution's bias, residual and ReLU, a coarser map added, or scores resized.

Inference only. Every function is its formula in plain torch; on CUDA a Triton kernel takes its place.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.choice import kernels_apply, kernels_wanted


def resize_add(finer: Tensor, coarser: Tensor) -> Tensor:
    """finer (B, H, W, C) + coarser (B, h, w, C) resized to (H, W), pixel centres kept."""
    if kernels_apply(finer, coarser):
        from crispseg.ops.kernels import resizing as kernels

        return kernels.resize_add(finer, coarser)
    resized = functional.interpolate(
        coarser.permute(0, 3, 1, 2), size=finer.shape[1:3], mode="bilinear", align_corners=False
    )
    return finer + resized.permute(0, 2, 3, 1)


def add_bias_(x: Tensor, bias: Tensor, residual: Tensor | None = None, relu: bool = False) -> Tensor:
    """x (B, H, W, C) + bias (+ residual), through a ReLU if asked for, in place."""
    if kernels_apply(x, bias) and x.is_contiguous() and (residual is None or residual.is_contiguous()):
        from crispseg.ops.kernels import resizing as kernels

        return kernels.add_bias_(x, bias, residual, relu)
    x = x.add_(bias)
    x = x if residual is None else x.add_(residual)
    return x.relu_() if relu else x


def upsample(
    scores: Tensor, low: tuple[int, int], size: tuple[int, int] | torch.Size, quarters: bool = False
) -> Tensor:
    """Scores (B, K, h * w) of a map of size `low` = (h, w), resized to (B, K, *size), bilinear, pixel centres kept.

    With `quarters` the four scores of each 2x2 square lie side by side, square after square.
    """
    if scores.is_cuda and scores.dtype == torch.float32 and kernels_wanted() and not scores.requires_grad:
        from crispseg.ops.kernels import resizing as kernels

        return kernels.upsample(scores, low, (size[0], size[1]), quarters)
    height, width = low
    if quarters:
        squares = scores.unflatten(-1, (height // 2, width // 2, 2, 2)).transpose(-3, -2)
        scores = squares.reshape(*scores.shape[:2], height * width)
    return functional.interpolate(
        scores.unflatten(-1, (height, width)), size=tuple(size), mode="bilinear", align_corners=False
    )
