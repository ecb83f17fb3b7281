"""BatchNorm by the statistics of the batch, with the ReLU that follows it, for training in half precision.

Maps are (B, C, H, W) with channels side by side in memory; kernels compute in float32 and return x's dtype. Only x is
kept for the backward pass: neither the normalised map nor the ReLU's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.dispatch import operator


@operator("batch_norm", of=1)
def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_variance: Tensor,
    batches: Tensor,
    momentum: float,
    eps: float,
    relu: bool,
) -> Tensor:
    """As in training with torch's BatchNorm, running statistics and the count of batches included; then the ReLU."""
    batches.add_(1)
    y = functional.batch_norm(x, running_mean, running_variance, weight, bias, True, momentum, eps)
    return torch.relu(y) if relu else y


@batch_norm.unless
def _(x: Tensor, *rest: Any) -> str | None:
    if x.numel() <= x.shape[1]:
        return "one value per channel has no variance"
    return None if x.is_contiguous(memory_format=torch.channels_last) else "not channels last"
