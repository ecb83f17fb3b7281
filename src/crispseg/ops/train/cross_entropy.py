"""Cross-entropy of a map of logits, summed over the pixels that count, with gradients.

On CUDA it is one Triton kernel in each direction (and a small one that adds parts); elsewhere (and for float64, without
Triton, in an exported program, or with CRISPSEG_OPS_BACKEND=torch) it is torch's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.dispatch import kernels_wanted

_MOST_CLASSES = 256
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def summed_cross_entropy(logits: Tensor, target: Tensor, ignored: int, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Label-smoothed cross-entropy of logits (B, C, H, W) with labels (B, H, W): its sum, in float32, over pixels whose
    label is not the ignored one, and how many these are."""
    if _use_kernels(logits, target):
        evenly = logits.is_contiguous() or logits.is_contiguous(memory_format=torch.channels_last)
        return _cross_entropy(logits if evenly else logits.contiguous(), target, ignored, smoothing)
    total = functional.cross_entropy(
        logits.float(), target, ignore_index=ignored, label_smoothing=smoothing, reduction="sum"
    )
    return total, (target != ignored).sum()


def _use_kernels(logits: Tensor, target: Tensor) -> bool:
    return (
        logits.is_cuda
        and logits.dtype in _DTYPES
        and logits.dim() == 4
        and logits.numel() > 0
        and logits.shape[1] <= _MOST_CLASSES
        and target.dtype == torch.int64
        and target.shape == logits[:, 0].shape
        and kernels_wanted()
    )


# Registered as operators so that torch.compile takes them as they are; their bodies import Triton when first run.


@torch.library.custom_op(
    "crispseg::cross_entropy",
    mutates_args=(),
    schema="(Tensor logits, Tensor target, int ignored, float smoothing) -> (Tensor, Tensor)",
)
def _cross_entropy(logits: Tensor, target: Tensor, ignored: int, smoothing: float) -> tuple[Tensor, Tensor]:
    from crispseg.ops.train import cross_entropy_kernels as kernels

    with torch.cuda.device_of(logits):
        return kernels.total(logits, target, ignored, smoothing)


@_cross_entropy.register_fake
def _(logits: Tensor, target: Tensor, ignored: int, smoothing: float) -> tuple[Tensor, Tensor]:
    return logits.new_empty((), dtype=torch.float32), target.new_empty(())


@torch.library.custom_op(
    "crispseg::cross_entropy_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor logits, Tensor target, int ignored, float smoothing) -> Tensor",
)
def _cross_entropy_backward(gradient: Tensor, logits: Tensor, target: Tensor, ignored: int, smoothing: float) -> Tensor:
    from crispseg.ops.train import cross_entropy_kernels as kernels

    with torch.cuda.device_of(logits):
        return kernels.gradients(gradient, logits, target, ignored, smoothing)


@_cross_entropy_backward.register_fake
def _(gradient: Tensor, logits: Tensor, target: Tensor, ignored: int, smoothing: float) -> Tensor:
    return torch.empty_like(logits)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, target, ctx.ignored, ctx.smoothing = inputs
    ctx.save_for_backward(logits, target)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    return _cross_entropy_backward(gradient, *ctx.saved_tensors, ctx.ignored, ctx.smoothing), None, None, None


_cross_entropy.register_autograd(_differentiate, setup_context=_remember)
