"""Linear projections without bias, for training in half precision.

On CUDA one operator with gradients of its own: activations in half precision, the weight and its gradient as it is kept
(float32, mostly), which is not rounded on the way. Elsewhere (see `mlp.takes`) torch's own operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.common.precision import without_autocast
from crispseg.ops.train.mlp import product, product_dtype, takes
from crispseg.ops.train.weight_copies import copies


def project(x: Tensor, weight: Tensor, spare: int = 0) -> Tensor:
    """x weight^T over the last axis, and `spare` columns of zeros beside it; weight (out, C)."""
    if takes(x, weight):
        dtype = product_dtype(x)
        return _project(x.to(dtype), weight, *copies(dtype, weight, spare=spare))
    return functional.linear(x, functional.pad(weight, (0, 0, 0, spare)) if spare else weight)


# Registered as an operator so that torch.compile takes it as it is. It is given the weight twice, as it is kept and in
# x's precision: the copy, too, is saved for the backward pass, and only inputs may be.


@torch.library.custom_op(
    "crispseg::project", mutates_args=(), schema="(Tensor x, Tensor weight, Tensor weight_copy) -> Tensor"
)
@without_autocast
def _project(x: Tensor, weight: Tensor, weight_copy: Tensor) -> Tensor:
    return torch.mm(x.reshape(-1, x.shape[-1]), weight_copy.t()).view(*x.shape[:-1], -1)


@_project.register_fake
def _(x: Tensor, weight: Tensor, weight_copy: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight_copy.shape[0])


@torch.library.custom_op(
    "crispseg::project_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor x, Tensor weight, Tensor weight_copy) -> (Tensor, Tensor)",
)
@without_autocast
def _project_backward(gradient: Tensor, x: Tensor, weight: Tensor, weight_copy: Tensor) -> tuple[Tensor, Tensor]:
    g = gradient.reshape(-1, gradient.shape[-1])
    dw = product(g.t(), x.reshape(-1, x.shape[-1]), weight.dtype)
    return torch.mm(g, weight_copy).view(x.shape), dw[: len(weight)]


@_project_backward.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor, weight_copy: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *_project_backward(gradient, *ctx.saved_tensors), None


_project.register_autograd(_differentiate, setup_context=_remember)
