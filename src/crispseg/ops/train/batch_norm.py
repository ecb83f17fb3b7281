"""BatchNorm by the statistics of the batch, with the ReLU that follows it, for training in half precision.

Maps are (B, C, H, W) with channels side by side in memory. `takes` says for which of them this replaces torch's own;
kernels compute in float32 and return x's dtype. Only x is kept for the backward pass: neither the normalised map nor
the ReLU's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crispseg.ops.dispatch import kernels_wanted


def takes(x: Tensor) -> bool:
    return (
        x.is_cuda
        and x.dtype in (torch.bfloat16, torch.float16)
        and x.numel() > x.shape[1]  # one value per channel has no variance
        and x.is_contiguous(memory_format=torch.channels_last)
        and kernels_wanted()
    )


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
    mean, scale = _statistics(x.detach(), running_mean, running_variance, batches, momentum, eps)
    return _normalise(x, weight, bias, mean, scale, relu)


def _rows(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B H W, C), without a copy where channels lie side by side."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).contiguous()


def _empty_map(x: Tensor) -> Tensor:
    """No view of anything: whoever gets it may change it in place, as a ReLU of another's does."""
    return torch.empty_like(x, memory_format=torch.channels_last)


# Registered as operators so that torch.compile takes them as they are; their bodies import Triton when first run. One
# that changes its arguments may not have gradients, so the statistics are an operator of their own, and the gradient of
# the other accounts for their being x's.


@torch.library.custom_op(
    "crispseg::batch_statistics",
    mutates_args=("running_mean", "running_variance", "batches"),
    schema="(Tensor x, Tensor(a!) running_mean, Tensor(b!) running_variance, Tensor(c!) batches, float momentum, "
    "float eps) -> (Tensor, Tensor)",
)
def _statistics(
    x: Tensor, running_mean: Tensor, running_variance: Tensor, batches: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(variance + eps) of each channel."""
    from crispseg.ops.train import batch_norm_kernels as kernels

    with torch.cuda.device_of(x):
        return kernels.statistics_(_rows(x), kernels.Running(running_mean, running_variance, batches, momentum), eps)


@_statistics.register_fake
def _(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[1], dtype=torch.float32), x.new_empty(x.shape[1], dtype=torch.float32)


@torch.library.custom_op(
    "crispseg::batch_norm",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor scale, bool relu) -> Tensor",
)
def _normalise(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, relu: bool) -> Tensor:
    from crispseg.ops.train import batch_norm_kernels as kernels

    y = _empty_map(x)
    with torch.cuda.device_of(x):
        kernels.normalise(_rows(x), mean, scale, weight, bias, relu, _rows(y))
    return y


@_normalise.register_fake
def _(x: Tensor, *rest: Any) -> Tensor:
    return _empty_map(x)


@torch.library.custom_op(
    "crispseg::batch_norm_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor scale, bool relu) "
    "-> (Tensor, Tensor, Tensor)",
)
def _backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from crispseg.ops.train import batch_norm_kernels as kernels

    dx = _empty_map(x)
    with torch.cuda.device_of(x):
        dw, db = kernels.gradients(_rows(gradient), _rows(x), mean, scale, weight, bias, relu, _rows(dx))
    return dx, dw, db


@_backward.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_map(x), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.relu = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(gradient, *ctx.saved_tensors, ctx.relu), None, None, None


_normalise.register_autograd(_differentiate, setup_context=_remember)
