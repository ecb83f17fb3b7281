"""Pixels attend few tokens, are added to what they read, and pass a LayerNorm; with gradients, for training.

The kernels' operator knows that the sum's gradient goes two ways, and adds the way through the attention to the other
in place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from crispseg.ops.common.custom import custom_op, differentiable
from crispseg.ops.dispatch import FLOATS, operator, too_many
from crispseg.ops.maps.normalize import layer_norm
from crispseg.ops.train import mlp
from crispseg.ops.train.cross_attention import LARGEST_HEAD, MOST_TOKENS, few_tokens_attention

_LARGEST = 4096  # channels that one program can hold


class Layers(NamedTuple):
    """Parameters: of queries (inner, C), of what attention gives (C, inner), of the LayerNorm (C,)."""

    q_weight: Tensor
    q_bias: Tensor
    out_weight: Tensor
    out_bias: Tensor
    norm_weight: Tensor
    norm_bias: Tensor


def _all(x: Tensor, kv: Tensor, layers: Layers, *rest: Any) -> tuple[Tensor, ...]:
    return x, *layers


@operator("residual_attention", dtypes=FLOATS, gradients="needed", of=_all)
def residual_attention(x: Tensor, kv: Tensor, layers: Layers, eps: float, heads: int) -> Tensor:
    """LayerNorm(x + out(attention(q(x), k, v))) of pixels x (B, L, C); kv (B, tokens, 2 x inner) is keys and values."""
    read = few_tokens_attention(mlp.linear(x, *layers[:2]), kv, heads)
    return layer_norm(x + mlp.linear(read, *layers[2:4]), *layers[4:], eps)


@residual_attention.unless
def _(x: Tensor, kv: Tensor, layers: Layers, eps: float, heads: int) -> str | None:
    """Of kv only the number of tokens is asked."""
    if not x.dtype == mlp.product_dtype(x) == torch.bfloat16:
        return "not bfloat16"
    if not x.is_contiguous() or x.numel() == 0 or kv.shape[1] == 0:
        return "not contiguous, or nothing"
    limits = (x.shape[2], _LARGEST, "channels"), (kv.shape[1], MOST_TOKENS, "tokens")
    widths = (len(layers.q_weight), LARGEST_HEAD * heads, "channels of these heads")
    return next(filter(None, (too_many(*limit) for limit in (*limits, widths))), None)


@residual_attention.kernel
def _(x: Tensor, kv: Tensor, layers: Layers, eps: float, heads: int) -> Tensor:
    given: Any = (x, kv.to(x.dtype), *layers, *mlp.rounded(x.dtype, *layers[:4]), eps, heads)
    return _residual_attention(*given)[0]


# Parameters are given twice, as in `mlp.py`.


def _with_what_is_kept(x: Tensor, kv: Tensor, q_weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inner = (*x.shape[:2], q_weight.shape[0])
    return x.new_empty(x.shape), x.new_empty(x.shape), x.new_empty(inner), x.new_empty(inner)


@custom_op("residual_attention", like=_with_what_is_kept)
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
    read = kernels.read_tokens(q, kv, heads)
    total = torch.addmm(out_bias_copy, read.view(len(rows), -1), out_copy.t())
    out = residual_norm_kernels.add_and_normalise_(total, rows, norm_weight, norm_bias, eps)
    return out.view(x.shape), total.view(x.shape), q, read


@custom_op("residual_attention_backward", like=lambda g, *inputs: [x.new_empty(x.shape) for x in inputs[:8]])
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
    q_bias_copy: Tensor,
    out_copy: Tensor,
    out_bias_copy: Tensor,
    eps: float,
    heads: int,
    total: Tensor,
    q: Tensor,
    read: Tensor,
) -> list[Tensor]:
    """Gradients of x, kv and the parameters."""
    from crispseg.ops.common import column_sums
    from crispseg.ops.maps import normalize_gradients
    from crispseg.ops.train import cross_attention_kernels as kernels

    rows = x.view(-1, x.shape[2])
    d_total, d_gain, d_shift = normalize_gradients.gradients(gradient, total, norm_weight, norm_bias, eps)
    dx = d_total.view(rows.shape)  # what goes past the attention; the rest is added below
    d_out_bias = column_sums.column_sums(dx, out_bias.dtype)
    d_out = mlp.product(dx.t(), read.view(len(rows), -1), out_weight.dtype)
    d_q, d_kv = kernels.read_tokens_back(torch.mm(dx, out_copy).view(read.shape), q, kv, heads)
    d_q = d_q.view(len(rows), -1)
    d_q_bias = column_sums.column_sums(d_q, q_bias.dtype)
    d_q_weight = mlp.product(d_q.t(), rows, q_weight.dtype)
    dx.addmm_(d_q, q_copy)
    return [dx.view(x.shape), d_kv, d_q_weight, d_q_bias, d_out, d_out_bias, d_gain, d_shift]


def _formula(x: Tensor, kv: Tensor, *rest: Any) -> Tensor:
    layers = Layers(*(p.to(x.dtype) for p in rest[:6]))
    return residual_attention.formula(x, kv, layers, *rest[-2:])


differentiable(_residual_attention, _residual_attention_backward, residual_attention, formula=_formula)
