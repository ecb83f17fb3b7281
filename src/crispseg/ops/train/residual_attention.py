"""Pixels attend few tokens, are added to what they read, and pass a LayerNorm; with gradients, for training.

On CUDA, in bfloat16, it is one operator, which knows that the sum's gradient goes two ways and adds the way through the
attention to the other in place. Elsewhere `takes` says no, and the layers are called one by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from crispseg.ops.common.precision import without_autocast
from crispseg.ops.train import mlp
from crispseg.ops.train.cross_attention import LARGEST_HEAD, MOST_TOKENS

_LARGEST = 4096  # channels that one program can hold


class Layers(NamedTuple):
    """Parameters: of queries (inner, C), of what attention gives (C, inner), of the LayerNorm (C,)."""

    q_weight: Tensor
    q_bias: Tensor
    out_weight: Tensor
    out_bias: Tensor
    norm_weight: Tensor
    norm_bias: Tensor


def takes(x: Tensor, tokens: int, heads: int, layers: Layers) -> bool:
    """Whether the operator is for these pixels (B, L, C), and so many tokens."""
    return (
        x.dtype == mlp.product_dtype(x) == torch.bfloat16
        and x.is_contiguous()
        and x.shape[2] <= _LARGEST
        and 0 < tokens <= MOST_TOKENS
        and layers.q_weight.shape[0] <= LARGEST_HEAD * heads
        and mlp.takes(x, *layers)
    )


def residual_attention(x: Tensor, kv: Tensor, layers: Layers, eps: float, heads: int) -> Tensor:
    """LayerNorm(x + out(attention(q(x), k, v))) where `takes` says so; kv (B, tokens, 2 x inner) is keys and values."""
    weights = mlp.rounded(x.dtype, *layers[:4])
    return _residual_attention(x, kv.to(x.dtype), *layers, *weights, eps, heads)[0]


# Registered as operators so that torch.compile takes them as they are; their bodies import Triton when first run.
# Parameters are given twice, as in `mlp.py`.

_PARAMETERS = (
    "Tensor q_weight, Tensor q_bias, Tensor out_weight, Tensor out_bias, Tensor norm_weight, Tensor norm_bias, "
)


@torch.library.custom_op(
    "crispseg::residual_attention",
    mutates_args=(),
    schema=f"(Tensor x, Tensor kv, {_PARAMETERS}Tensor q_copy, Tensor q_bias_copy, Tensor out_copy, "
    "Tensor out_bias_copy, float eps, int heads) -> (Tensor, Tensor, Tensor, Tensor)",
)
@without_autocast
def _residual_attention(
    x: Tensor,
    kv: Tensor,
    q_weight: Tensor,
    q_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    q_copy: Tensor,
    q_bias_copy: Tensor,
    out_copy: Tensor,
    out_bias_copy: Tensor,
    eps: float,
    heads: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The result; the sum that was normalised, the queries, and what was read."""
    from crispseg.ops.train import cross_attention_kernels as kernels
    from crispseg.ops.train import residual_norm_kernels

    rows = x.view(-1, x.shape[2])
    q = torch.addmm(q_bias_copy, rows, q_copy.t()).view(*x.shape[:2], -1)
    with torch.cuda.device_of(x):
        read = kernels.read_tokens(q, kv, heads)
        total = torch.addmm(out_bias_copy, read.view(len(rows), -1), out_copy.t())
        out = residual_norm_kernels.add_and_normalise_(total, rows, norm_weight, norm_bias, eps)
    return out.view(x.shape), total.view(x.shape), q, read


@_residual_attention.register_fake
def _(x: Tensor, kv: Tensor, q_weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inner = (*x.shape[:2], q_weight.shape[0])
    return x.new_empty(x.shape), x.new_empty(x.shape), x.new_empty(inner), x.new_empty(inner)


@torch.library.custom_op(
    "crispseg::residual_attention_backward",
    mutates_args=(),
    schema=f"(Tensor gradient, Tensor x, Tensor kv, {_PARAMETERS}Tensor q_copy, Tensor out_copy, Tensor total, "
    "Tensor q, Tensor read, float eps, int heads) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
@without_autocast
def _residual_attention_backward(
    gradient: Tensor,
    x: Tensor,
    kv: Tensor,
    q_weight: Tensor,
    q_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    q_copy: Tensor,
    out_copy: Tensor,
    total: Tensor,
    q: Tensor,
    read: Tensor,
    eps: float,
    heads: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, kv and the parameters."""
    from crispseg.ops.common import column_sums
    from crispseg.ops.maps import normalize_gradients
    from crispseg.ops.train import cross_attention_kernels as kernels

    rows = x.view(-1, x.shape[2])
    with torch.cuda.device_of(x):
        d_total, d_gain, d_shift = normalize_gradients.gradients(gradient, total, norm_weight, norm_bias, eps)
        dx = d_total.view(rows.shape)  # what goes past the attention; the rest is added below
        d_out_bias = column_sums.column_sums(dx, out_bias.dtype)
        d_out = mlp.product(dx.t(), read.view(len(rows), -1), out_weight.dtype)
        d_q, d_kv = kernels.read_tokens_back(torch.mm(dx, out_copy).view(read.shape), q, kv, heads)
        d_q = d_q.view(len(rows), -1)
        d_q_bias = column_sums.column_sums(d_q, q_bias.dtype)
    d_q_weight = mlp.product(d_q.t(), rows, q_weight.dtype)
    dx.addmm_(d_q, q_copy)
    return dx.view(x.shape), d_kv, d_q_weight, d_q_bias, d_out, d_out_bias, d_gain, d_shift


@_residual_attention_backward.register_fake
def _(gradient: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dx, d_kv, d_q, d_q_bias, d_out, d_out_bias, d_gain, d_shift = (v.new_empty(v.shape) for v in (x, *rest[:7]))
    return dx, d_kv, d_q, d_q_bias, d_out, d_out_bias, d_gain, d_shift


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, q_copy, _, out_copy, _, ctx.eps, ctx.heads = inputs
    ctx.save_for_backward(*tensors, q_copy, out_copy, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    found = _residual_attention_backward(gradient, *ctx.saved_tensors, ctx.eps, ctx.heads)
    return *found, *(None,) * 6


_residual_attention.register_autograd(_differentiate, setup_context=_remember)
