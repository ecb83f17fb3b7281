"""BatchNorm by the statistics of the batch, with the ReLU that follows it, for training in half precision.

Maps are (B, C, H, W) with channels side by side in memory; kernels compute in float32 and return x's dtype. Only x is
kept for the backward pass: neither the normalised map nor the ReLU's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.common.custom import custom_op, differentiable
from crispseg.ops.dispatch import operator


@operator("batch_norm", of=lambda x, *rest: (x,))
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


@batch_norm.kernel
def _(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    *running, relu = rest  # what `_statistics` takes
    return _normalise(x, weight, bias, *_statistics(x.detach(), *running), relu)


def _rows(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B H W, C), without a copy where channels lie side by side."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).contiguous()


def _empty_map(x: Tensor, *rest: Any) -> Tensor:
    """No view of anything: whoever gets it may change it in place, as a ReLU of another's does."""
    return torch.empty_like(x, memory_format=torch.channels_last)


def _two_numbers(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[1], dtype=torch.float32), x.new_empty(x.shape[1], dtype=torch.float32)


# An operator that changes its arguments may not have gradients, so the statistics are one of their own, and the
# gradient of the other accounts for their being x's.


@custom_op("batch_statistics", like=_two_numbers, changes=("running_mean", "running_variance", "batches"))
def _statistics(
    x: Tensor, running_mean: Tensor, running_variance: Tensor, batches: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(variance + eps) of each channel."""
    from crispseg.ops.train import batch_norm_kernels as kernels

    return kernels.statistics_(_rows(x), kernels.Running(running_mean, running_variance, batches, momentum), eps)


@custom_op("batch_norm", like=_empty_map)
def _normalise(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, relu: bool) -> Tensor:
    from crispseg.ops.train import batch_norm_kernels as kernels

    y = _empty_map(x)
    kernels.normalise(_rows(x), mean, scale, weight, bias, relu, _rows(y))
    return y


@custom_op(
    "batch_norm_backward",
    like=lambda g, x, weight, bias, *rest: (
        _empty_map(x),
        weight.new_empty(weight.shape),
        bias.new_empty(bias.shape),
    ),
)
def _backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from crispseg.ops.train import batch_norm_kernels as kernels

    dx = _empty_map(x)
    dw, db = kernels.gradients(_rows(gradient), _rows(x), mean, scale, weight, bias, relu, _rows(dx))
    return dx, dw, db


def _formula(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, relu: bool) -> Tensor:
    """With the mean taken again, and what the variance may change by (nothing, but it has a gradient)."""
    rows = x.float().movedim(1, -1)
    variance, average = torch.var_mean(rows, (0, 1, 2), correction=0)
    inverse = (scale.square().reciprocal() + variance - variance.detach()).rsqrt()
    y = ((rows - average) * inverse * weight + bias).movedim(-1, 1).to(x.dtype)
    return torch.relu(y) if relu else y


differentiable(_normalise, _backward, batch_norm, formula=_formula)
