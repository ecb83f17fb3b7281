"""Linear layers with bias and the MLP of two of them with GELU between, for training in half precision.

On CUDA each is one operator with gradients of its own: activations in half precision, weights and their gradients as
they are kept (float32, mostly), biases' gradients summed in float32. The MLP keeps its hidden units before GELU only,
and makes the rest again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.dispatch import FLOATS, HALF, operator


@operator("linear", dtypes=FLOATS, gradients="needed")
def linear(x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False) -> Tensor:
    """x weight^T + bias over the last axis, and its ReLU if wanted; weight (out, C), bias (out,)."""
    y = functional.linear(x, weight, bias)
    return torch.relu(y) if relu else y


@operator("mlp", dtypes=FLOATS, gradients="needed")
def mlp(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
    """gelu(x weight1^T + bias1) weight2^T + bias2 over the last axis; weight1 (hidden, C), weight2 (out, hidden)."""
    return functional.linear(functional.gelu(functional.linear(x, weight1, bias1)), weight2, bias2)


@linear.unless
@mlp.unless
def why_not_in_half(x: Tensor, *rest: Any, **options: Any) -> str | None:
    if product_dtype(x) not in HALF:
        return "float32"
    return None if x.numel() > 0 else "no elements"


def product_dtype(x: Tensor) -> torch.dtype:
    """The precision that a product of x is made in."""
    if x.dtype != torch.float64 and torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return x.dtype
