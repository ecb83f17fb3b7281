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

from crispseg.ops.common.custom import custom_op, differentiable
from crispseg.ops.dispatch import FLOATS, HALF, operator


@operator("linear", dtypes=FLOATS, gradients="needed")
def linear(x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False) -> Tensor:
    """x weight^T + bias over the last axis, and its ReLU if wanted; weight (out, C), bias (out,)."""
    y = functional.linear(x, weight, bias)
    return torch.relu(y) if relu else y


@linear.kernel
def _(x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False) -> Tensor:
    dtype = product_dtype(x)
    weight_copy, bias_copy = rounded_copies(dtype, weight, bias)
    return _linear(x.to(dtype), weight, bias, weight_copy, bias_copy, relu)


@operator("mlp", dtypes=FLOATS, gradients="needed")
def mlp(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
    """gelu(x weight1^T + bias1) weight2^T + bias2 over the last axis; weight1 (hidden, C), weight2 (out, hidden)."""
    return functional.linear(functional.gelu(functional.linear(x, weight1, bias1)), weight2, bias2)


@mlp.kernel
def _(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
    dtype = product_dtype(x)
    copy1, copy2, bias_copy = rounded_copies(dtype, weight1, weight2, bias2)
    return _mlp(x.to(dtype), weight1, bias1, weight2, bias2, copy1, copy2, bias_copy)[0]


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


def rounded_copies(dtype: torch.dtype, *parameters: Tensor) -> list[Tensor]:
    """Parameters as products take them, without gradient."""
    return [x.detach().to(dtype) for x in parameters]


def product_stored_as(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """x y, stored in this precision without being rounded to that of x first, where the device can."""
    if x.dtype != dtype == torch.float32 and x.is_cuda:
        return torch.mm(x, y, out_dtype=dtype)
    return torch.mm(x, y).to(dtype)


def _like_inputs(gradient: Tensor, *inputs: Any) -> list[Tensor]:
    """Of a linear layer (x, weight, bias, its copy ...) or an MLP (x and two of each)."""
    count = 3 if len(inputs) < 6 else 5
    return [x.new_empty(x.shape) for x in inputs[:count]]


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


# Each is given its parameters twice, as they are kept and in x's precision: the copies, too, are saved for the backward
# pass, and only inputs may be.


@custom_op("linear", like=lambda x, weight, *rest: x.new_empty(*x.shape[:-1], weight.shape[0]))
def _linear(x: Tensor, weight: Tensor, bias: Tensor, weight_copy: Tensor, bias_copy: Tensor, relu: bool) -> Tensor:
    multiply = torch._addmm_activation if relu else torch.addmm  # whose activation is ReLU unless told otherwise
    return multiply(bias_copy, _rows(x), weight_copy.t()).view(*x.shape[:-1], -1)


@custom_op("linear_backward", like=_like_inputs)
def _linear_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor, weight_copy: Tensor, y: Tensor | None
) -> list[Tensor]:
    """y is the result where it went through a ReLU."""
    from crispseg.ops.common import column_sums

    g = _rows(gradient)
    if y is None:
        db = column_sums.column_sums(g, bias.dtype)
    else:
        g, db = column_sums.relu_gradients(g, _rows(y), bias.dtype)
    return [torch.mm(g, weight_copy).view(x.shape), product_stored_as(g.t(), _rows(x), weight.dtype), db]


def _linear_gradients(gradient: Tensor, *kept: Any) -> list[Tensor]:
    x, weight, bias, weight_copy, _, _, y = kept
    return _linear_backward(gradient, x, weight, bias, weight_copy, y)


def _result_of_relu(inputs: Any, outputs: Any) -> Any:
    return *inputs, outputs[0] if inputs[-1] else None


def _linear_formula(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    return linear.formula(x, weight.to(x.dtype), bias.to(x.dtype), rest[-1])


differentiable(_linear, _linear_gradients, linear, remember=_result_of_relu, formula=_linear_formula)


def _mlp_like(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    rows = x.numel() // x.shape[-1]
    return x.new_empty(*x.shape[:-1], weight2.shape[0]), x.new_empty(rows, weight1.shape[0])


@custom_op("mlp", like=_mlp_like)
def _mlp(
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    weight1_copy: Tensor,
    weight2_copy: Tensor,
    bias2_copy: Tensor,
) -> tuple[Tensor, Tensor]:
    """The result, and the hidden units (rows, hidden) before bias and GELU."""
    from crispseg.ops.train import mlp_kernels as kernels

    h = torch.mm(_rows(x), weight1_copy.t())
    u = kernels.gelu(h, bias1)
    return torch.addmm(bias2_copy, u, weight2_copy.t()).view(*x.shape[:-1], -1), h


@custom_op("mlp_backward", like=_like_inputs)
def _mlp_backward(
    gradient: Tensor,
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    weight1_copy: Tensor,
    weight2_copy: Tensor,
    bias2_copy: Tensor,
    h: Tensor,
) -> list[Tensor]:
    from crispseg.ops.train import mlp_kernels as kernels

    g = _rows(gradient)
    du = torch.mm(g, weight2_copy)
    u, db1, db2 = kernels.gelu_gradients_(du, h, bias1, g, bias2)
    dh = du
    dw2 = product_stored_as(g.t(), u, weight2.dtype)
    dw1 = product_stored_as(dh.t(), _rows(x), weight1.dtype)
    return [torch.mm(dh, weight1_copy).view(x.shape), dw1, db1, dw2, db2]


def _mlp_formula(x: Tensor, *rest: Tensor) -> Tensor:
    return mlp.formula(x, *(p.to(x.dtype) for p in rest[:4]))


differentiable(_mlp, _mlp_backward, mlp, formula=_mlp_formula)
