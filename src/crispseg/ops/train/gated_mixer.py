"""Everything between a mixer's two linear projections as one operation with gradients, for CUDA devices.

`infer/gated_mixer.py` has most of it for inference, where nothing is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crispseg.ops.common.precision import without_autocast
from crispseg.ops.dispatch import HAS_TRITON, kernels_wanted
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
) -> Tensor | None:
    """LayerNorm(ncssd(V, B, C, softplus(dt + dt_bias) exp(a_log))) * z, with (V B C) = silu(conv(xbc) + conv_bias).

    projected: z, xbc, dt side by side (B, H, W, inner + (inner + 2N) + heads), and perhaps columns that nobody needs.
    conv_weight (inner + 2N, 1, 3, 3); dt_bias, a_log, d (heads,); norm_weight, norm_bias (inner,). The result is
    (B, H, W, inner), in the precision of `projected`.

    None where there are no kernels for these tensors: on a CPU, in float64, without Triton, in an exported program, or
    with CRISPSEG_OPS_BACKEND=torch.
    """
    if not (kernels_wanted() and projected.is_cuda):
        return None
    choices = rule.fusion == "normalized", rule.skip == "before"
    arguments = (projected, conv_weight, conv_bias, dt_bias, a_log, d, *gates, norm_weight, norm_bias, eps, *choices)
    return _forward(*arguments)[0] if kernels.supports(_given(*arguments), rule) else None


def _given(*inputs: Any) -> Given:
    return kernels.Given._make((*inputs[:6], Gates(*inputs[6:10]), *inputs[10:]))


@torch.library.custom_op(
    "crispseg::convolve_mix_gate", mutates_args=(), schema=f"({_INPUTS}) -> ({', '.join(['Tensor'] * (1 + _KEPT))})"
)
@without_autocast
def _forward(*inputs: Any) -> tuple[Tensor, ...]:
    """The result and what the backward pass needs: xbc convolved, the tokens before their norm, kv, k, q, mu."""
    with torch.cuda.device_of(inputs[0]):
        out, xbc, y, states = kernels.forward(_given(*inputs))
    return out, xbc, y, states.kv, states.k, states.q, states.mu


@_forward.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
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


@torch.library.custom_op(
    "crispseg::convolve_mix_gate_backward",
    mutates_args=(),
    schema=f"(Tensor gradient, {_INPUTS}, Tensor xbc, Tensor y, Tensor kv, Tensor k, Tensor q, Tensor mu) -> Tensor[]",
)
@without_autocast
def _backward(gradient: Tensor, *inputs: Any) -> list[Tensor]:
    """The gradients of the tensors among the inputs that are given."""
    with torch.cuda.device_of(gradient):
        return list(kernels.backward(_given(*inputs[:-_KEPT]), gradient, *inputs[-_KEPT:]))


@_backward.register_fake
def _(gradient: Tensor, *inputs: Any) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in inputs[:_TENSORS] if x is not None]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.choices = inputs[_TENSORS:]
    ctx.save_for_backward(*inputs[:_TENSORS], *output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, gradient: Tensor | None, *others: Any) -> tuple[Any, ...]:
    inputs, kept = ctx.saved_tensors[:_TENSORS], ctx.saved_tensors[_TENSORS:]
    if gradient is None:
        return (None,) * (_TENSORS + 3)
    found = iter(_backward(gradient, *inputs, *ctx.choices, *kept))
    return *(None if x is None else next(found) for x in inputs), None, None, None


_forward.register_autograd(_differentiate, setup_context=_remember)
