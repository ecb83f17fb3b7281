"""Linear layers with bias and the MLP of two of them with GELU between, for training in half precision.

On CUDA each is one operator with gradients of its own: activations in half precision, weights and their gradients as
they are kept (float32, mostly), biases' gradients summed in float32. The MLP keeps its hidden units before GELU only,
and makes the rest again. Elsewhere (and for float64, without Triton, in an exported program, where no gradient is
recorded, or with CRISPSEG_OPS_BACKEND=torch) both are torch's own operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.common.precision import without_autocast
from crispseg.ops.dispatch import kernels_wanted


def linear(x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False) -> Tensor:
    """x weight^T + bias over the last axis, and its ReLU if wanted; weight (out, C), bias (out,)."""
    if takes(x, weight, bias):
        dtype = product_dtype(x)
        return _linear(x.to(dtype), weight, bias, *rounded(dtype, weight, bias), relu)
    y = functional.linear(x, weight, bias)
    return torch.relu(y) if relu else y


def mlp(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
    """gelu(x weight1^T + bias1) weight2^T + bias2 over the last axis; weight1 (hidden, C), weight2 (out, hidden)."""
    if takes(x, weight1, bias1, weight2, bias2):
        dtype = product_dtype(x)
        return _mlp(x.to(dtype), weight1, bias1, weight2, bias2, *rounded(dtype, weight1, weight2, bias2))[0]
    return functional.linear(functional.gelu(functional.linear(x, weight1, bias1)), weight2, bias2)


def takes(x: Tensor, *parameters: Tensor) -> bool:
    """Whether operators of our own are for a layer of these parameters."""
    return (
        x.is_cuda
        and product_dtype(x) in (torch.bfloat16, torch.float16)
        and x.numel() > 0
        and torch.is_grad_enabled()
        and any(v.requires_grad for v in (x, *parameters))
        and all(v.dtype != torch.float64 for v in parameters)
        and kernels_wanted()
    )


def product_dtype(x: Tensor) -> torch.dtype:
    """The precision that a product of x is made in."""
    if x.dtype != torch.float64 and torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return x.dtype


def rounded(dtype: torch.dtype, *parameters: Tensor) -> list[Tensor]:
    """Parameters as products take them, without gradient."""
    return [x.detach().to(dtype) for x in parameters]


def product(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """x y, stored in this precision without being rounded to that of x first, where the device can."""
    if x.dtype != dtype == torch.float32 and x.is_cuda:
        return torch.mm(x, y, out_dtype=dtype)
    return torch.mm(x, y).to(dtype)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


# Registered as operators so that torch.compile takes them as they are; their bodies import Triton when first run.
# Each is given its parameters twice, as they are kept and in x's precision: the copies, too, are saved for the backward
# pass, and only inputs may be.


@torch.library.custom_op(
    "crispseg::linear",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor bias, Tensor weight_copy, Tensor bias_copy, bool relu) -> Tensor",
)
@without_autocast
def _linear(x: Tensor, weight: Tensor, bias: Tensor, weight_copy: Tensor, bias_copy: Tensor, relu: bool) -> Tensor:
    multiply = torch._addmm_activation if relu else torch.addmm  # whose activation is ReLU unless told otherwise
    return multiply(bias_copy, _rows(x), weight_copy.t()).view(*x.shape[:-1], -1)


@_linear.register_fake
def _(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op(
    "crispseg::linear_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor x, Tensor weight, Tensor bias, Tensor weight_copy, Tensor? y) "
    "-> (Tensor, Tensor, Tensor)",
)
@without_autocast
def _linear_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor, weight_copy: Tensor, y: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """y is the result where it went through a ReLU."""
    from crispseg.ops.common import column_sums

    g = _rows(gradient)
    with torch.cuda.device_of(x):
        if y is None:
            db = column_sums.column_sums(g, bias.dtype)
        else:
            g, db = column_sums.relu_gradients(g, _rows(y), bias.dtype)
    return torch.mm(g, weight_copy).view(x.shape), product(g.t(), _rows(x), weight.dtype), db


@_linear_backward.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


def _remember_linear(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, _, relu = inputs
    ctx.save_for_backward(*tensors, output if relu else None)


def _differentiate_linear(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *_linear_backward(gradient, *ctx.saved_tensors), None, None, None


_linear.register_autograd(_differentiate_linear, setup_context=_remember_linear)


@torch.library.custom_op(
    "crispseg::mlp",
    mutates_args=(),
    schema="(Tensor x, Tensor weight1, Tensor bias1, Tensor weight2, Tensor bias2, Tensor weight1_copy, "
    "Tensor weight2_copy, Tensor bias2_copy) -> (Tensor, Tensor)",
)
@without_autocast
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
    with torch.cuda.device_of(x):
        u = kernels.gelu(h, bias1)
    return torch.addmm(bias2_copy, u, weight2_copy.t()).view(*x.shape[:-1], -1), h


@_mlp.register_fake
def _(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    rows = x.numel() // x.shape[-1]
    return x.new_empty(*x.shape[:-1], weight2.shape[0]), x.new_empty(rows, weight1.shape[0])


@torch.library.custom_op(
    "crispseg::mlp_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor x, Tensor weight1, Tensor bias1, Tensor weight2, Tensor bias2, "
    "Tensor weight1_copy, Tensor weight2_copy, Tensor h) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
@without_autocast
def _mlp_backward(
    gradient: Tensor,
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    weight1_copy: Tensor,
    weight2_copy: Tensor,
    h: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from crispseg.ops.train import mlp_kernels as kernels

    g = _rows(gradient)
    du = torch.mm(g, weight2_copy)
    with torch.cuda.device_of(x):
        u, db1, db2 = kernels.gelu_gradients_(du, h, bias1, g, bias2)
    dh = du
    dw2 = product(g.t(), u, weight2.dtype)
    dw1 = product(dh.t(), _rows(x), weight1.dtype)
    return torch.mm(dh, weight1_copy).view(x.shape), dw1, db1, dw2, db2


@_mlp_backward.register_fake
def _(gradient: Tensor, x: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dx, dw1, db1, dw2, db2 = (v.new_empty(v.shape) for v in (x, *rest[:4]))
    return dx, dw1, db1, dw2, db2


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:7], output[1])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 8
    return *_mlp_backward(gradient, *ctx.saved_tensors), None, None, None


_mlp.register_autograd(_differentiate, setup_context=_remember)
