"""A residual branch added to its map and dropped for whole samples: one pass over the maps on CUDA, and one back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crispseg.ops.common.precision import without_autocast
from crispseg.ops.dispatch import kernels_wanted

_MOST_SAMPLES = 65535  # that a launch can number


def add_kept(x: Tensor, branch: Tensor, drawn: Tensor, rate: float) -> Tensor:
    """x + branch / (1 - rate) for samples whose number in `drawn` (B,) is at least `rate`, x for the others."""
    if _takes(x, branch):
        return _add_kept(x, branch, drawn, rate)
    return torch.addcmul(x, branch, kept_scale(x, drawn, rate))


def kept_scale(x: Tensor, drawn: Tensor, rate: float) -> Tensor:
    """Per sample, for products with x: zero, or what keeps the mean."""
    return ((drawn >= rate).to(x.dtype) / (1.0 - rate)).view(-1, *[1] * (x.dim() - 1))


def _takes(x: Tensor, branch: Tensor) -> bool:
    return (
        x.is_cuda
        and x.dtype == branch.dtype
        and x.dtype in (torch.bfloat16, torch.float16)
        and x.shape == branch.shape
        and x.is_contiguous()
        and branch.is_contiguous()
        and x.numel() > 0
        and x.shape[0] <= _MOST_SAMPLES
        and kernels_wanted()
    )


# Registered as operators so that torch.compile takes them as they are; their bodies import Triton when first run.


@torch.library.custom_op(
    "crispseg::add_kept", mutates_args=(), schema="(Tensor x, Tensor branch, Tensor drawn, float rate) -> Tensor"
)
@without_autocast
def _add_kept(x: Tensor, branch: Tensor, drawn: Tensor, rate: float) -> Tensor:
    from crispseg.ops.train import drop_path_kernels as kernels

    with torch.cuda.device_of(x):
        return kernels.scaled(branch, drawn, rate, x)


@_add_kept.register_fake
def _(x: Tensor, branch: Tensor, drawn: Tensor, rate: float) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op(
    "crispseg::scale_kept", mutates_args=(), schema="(Tensor branch, Tensor drawn, float rate) -> Tensor"
)
@without_autocast
def _scale_kept(branch: Tensor, drawn: Tensor, rate: float) -> Tensor:
    from crispseg.ops.train import drop_path_kernels as kernels

    with torch.cuda.device_of(branch):
        return kernels.scaled(branch.contiguous(), drawn, rate)


@_scale_kept.register_fake
def _(branch: Tensor, drawn: Tensor, rate: float) -> Tensor:
    return branch.new_empty(branch.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, _, drawn, ctx.rate = inputs
    ctx.save_for_backward(drawn)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return gradient, _scale_kept(gradient, *ctx.saved_tensors, ctx.rate), None, None


_add_kept.register_autograd(_differentiate, setup_context=_remember)
