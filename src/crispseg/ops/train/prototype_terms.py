"""How far the prototypes of a class are from orthogonal, and classes from each other, with gradients.

On CUDA both terms and their gradients are one Triton kernel (and a small one that adds images up): they are little work
but sixty launches in torch's operations. Elsewhere `takes` says no, and `losses.py` has the formulas.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crispseg.ops.dispatch import kernels_wanted

_MOST = 32  # prototypes of an image
_WIDEST = 256


def takes(prototypes: Tensor) -> bool:
    """Whether the kernel is for these prototypes (B, classes, K, d)."""
    classes, count, width = prototypes.shape[1:]
    return (
        prototypes.is_cuda
        and prototypes.dtype == torch.float32
        and prototypes.numel() > 0
        and classes * count <= _MOST
        and width <= _WIDEST
        and kernels_wanted()
    )


def prototype_terms(prototypes: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """L_orth and L_margin of normalised prototypes (B, classes, K, d) where `takes` says so."""
    orth, margin, _, _ = _prototype_terms(prototypes, delta)
    return orth, margin


# Registered as an operator so that torch.compile takes it as it is; its body imports Triton when first run.


@torch.library.custom_op(
    "crispseg::prototype_terms",
    mutates_args=(),
    schema="(Tensor prototypes, float delta) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _prototype_terms(prototypes: Tensor, delta: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both terms, then their gradients."""
    from crispseg.ops.train import prototype_terms_kernels as kernels

    with torch.cuda.device_of(prototypes):
        return kernels.terms_and_gradients(prototypes, 1 - delta)


@_prototype_terms.register_fake
def _(prototypes: Tensor, delta: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    numbers = prototypes.new_empty(()), prototypes.new_empty(())
    return *numbers, prototypes.new_empty(prototypes.shape), prototypes.new_empty(prototypes.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[2:])
    ctx.mark_non_differentiable(*output[2:])


def _differentiate(ctx: Any, orth: Tensor, margin: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    d_orth, d_margin = ctx.saved_tensors
    return torch.addcmul(d_orth * orth, d_margin, margin), None


_prototype_terms.register_autograd(_differentiate, setup_context=_remember)
