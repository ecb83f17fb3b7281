"""Everything between a mixer's two linear projections as one operation with gradients, for CUDA devices.

`infer/gated_mixer.py` has most of it for inference, where nothing is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crispseg.ops.common.custom import custom_op, differentiable
from crispseg.ops.dispatch import FLOATS, HAS_TRITON, operator
from crispseg.ops.infer.gated_mixer import flat, gated_mixer
from crispseg.ops.maps.depthwise import depthwise3x3
from crispseg.ops.nc_ssd.spec import Gates, Rule

if TYPE_CHECKING:
    from crispseg.ops.train.gated_mixer_kernels import Given

if HAS_TRITON:
    from crispseg.ops.train import gated_mixer_kernels as kernels

_INPUTS = (
    "Tensor projected, Tensor conv_weight, Tensor conv_bias, Tensor dt_bias, Tensor a_log, Tensor d, Tensor? residual, "
    "Tensor? omega, Tensor? s, Tensor? t, Tensor norm_weight, Tensor norm_bias, float eps, bool normalized, "
    "bool skip_before"
)
_TENSORS = 12  # of these
_KEPT = 6  # tensors for the backward pass, beside the inputs


@operator("convolve_mix_gate", dtypes=FLOATS, of=lambda projected, *rest: (projected,))
def convolve_mix_gate(
    projected: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor,
    dt_bias: Tensor,
    a_log: Tensor,
    d: Tensor,
    gates: Gates,
    rule: Rule,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
) -> Tensor:
    """LayerNorm(ncssd(V, B, C, softplus(dt + dt_bias) exp(a_log))) * z, with (V B C) = silu(conv(xbc) + conv_bias).

    projected: z, xbc, dt side by side (B, H, W, inner + (inner + 2N) + heads), and perhaps columns that nobody needs.
    conv_weight (inner + 2N, 1, 3, 3); dt_bias, a_log, d (heads,); norm_weight, norm_bias (inner,). The result is
    (B, H, W, inner), in the precision of `projected`.
    """
    heads, inner, mixed = len(d), len(norm_weight), len(conv_weight)
    z, xbc, dt, _ = projected.split([inner, mixed, heads, projected.shape[-1] - inner - mixed - heads], dim=-1)
    xbc = depthwise3x3(xbc, conv_weight, conv_bias, activation="silu")
    xbc, dt, gate = (x.flatten(1, 2) for x in (xbc, dt, z))
    y = gated_mixer.formula(xbc, dt, gate, dt_bias, a_log, d, gates, rule, norm_weight, norm_bias, eps)
    return y.view(z.shape)


@convolve_mix_gate.unless
def _(*arguments: Any) -> str | None:
    supported = kernels.supports(_given(*flat(*arguments)), arguments[7])
    return None if supported else "sizes, types or a rule that it does not know"


@convolve_mix_gate.kernel
def _(*arguments: Any) -> Tensor:
    return _forward(*flat(*arguments))[0]


def _given(*inputs: Any) -> Given:
    return kernels.Given._make((*inputs[:6], Gates(*inputs[6:10]), *inputs[10:]))


def _like_all(*inputs: Any) -> tuple[Tensor, ...]:
    projected, conv_weight, norm_weight, normalized = inputs[0], inputs[1], inputs[10], inputs[-2]
    batch, *size, _ = projected.shape
    inner, mixed = norm_weight.shape[0], conv_weight.shape[0]
    state = (mixed - inner) // 2

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return projected.new_empty(shape, dtype=dtype)

    y = empty(batch, *size, inner)
    sums = empty(batch, state, inner), empty(batch, state if normalized else 0), empty(batch, state)
    out, xbc = (empty(batch, *size, width, dtype=projected.dtype) for width in (inner, mixed))
    return out, xbc, y, *sums, empty(batch, inner)


@custom_op("convolve_mix_gate", like=_like_all, schema=f"({_INPUTS}) -> ({', '.join(['Tensor'] * (1 + _KEPT))})")
def _forward(*inputs: Any) -> tuple[Tensor, ...]:
    """The result and what the backward pass needs: xbc convolved, the tokens before their norm, kv, k, q, mu."""
    out, xbc, y, states = kernels.forward(_given(*inputs))
    return out, xbc, y, states.kv, states.k, states.q, states.mu


@custom_op(
    "convolve_mix_gate_backward",
    like=lambda g, *inputs: [x.new_empty(x.shape) for x in inputs[:_TENSORS] if x is not None],
    schema=f"(Tensor gradient, {_INPUTS}, Tensor xbc, Tensor y, Tensor kv, Tensor k, Tensor q, Tensor mu) -> Tensor[]",
)
def _backward(gradient: Tensor, *inputs: Any) -> list[Tensor]:
    """The gradients of the tensors among the inputs that are given."""
    return list(kernels.backward(_given(*inputs[:-_KEPT]), gradient, *inputs[-_KEPT:]))


def _formula(*inputs: Any) -> Tensor:
    given = _given(*inputs)
    return convolve_mix_gate.formula(*given[:7], given.rule, *given[7:10])


differentiable(_forward, _backward, convolve_mix_gate, formula=_formula)
