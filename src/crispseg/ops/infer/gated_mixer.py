"""Everything between a mixer's depthwise convolution and its output projection, as one operation for inference."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from crispseg.ops import ncssd
from crispseg.ops.common.precision import widened
from crispseg.ops.dispatch import FLOATS, operator
from crispseg.ops.nc_ssd.spec import Gates, Rule


def _tensors(*arguments: Any) -> tuple[Tensor, ...]:
    return *arguments[:6], *(x for x in arguments[6] if x is not None)


@operator("gated_mixer", dtypes=FLOATS, gradients="none", of=_tensors)
def gated_mixer(
    xbc: Tensor,
    dt: Tensor,
    z: Tensor,
    dt_bias: Tensor,
    a_log: Tensor,
    d: Tensor,
    gates: Gates,
    rule: Rule,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
) -> Tensor:
    """LayerNorm(ncssd(V, B, C, softplus(dt + dt_bias) exp(a_log))) * z, in z's precision: (B, L, inner).

    xbc: V, B and C side by side (B, L, inner + 2N), convolved and activated. dt (B, L, H), z (B, L, inner). These may
    be views into wider tensors; the kernels copy nothing. dt_bias, a_log, d (H,); norm_weight, norm_bias (inner,).
    """
    inner = z.shape[-1]
    state = (xbc.shape[-1] - inner) // 2
    v, b, c = xbc.split([inner, state, state], dim=-1)
    rho = functional.softplus(widened(dt) + widened(dt_bias)) * widened(a_log).exp()
    y = ncssd(v.unflatten(-1, (dt.shape[-1], -1)), b, c, rho, d, gates, rule)  # v (B, L, H, P)
    y = functional.layer_norm(y.flatten(2), (inner,), norm_weight.to(y.dtype), norm_bias.to(y.dtype), eps)
    return y.to(z.dtype) * z


def flat(*arguments: Any) -> tuple[Any, ...]:
    """As a custom operator takes them: the gates one by one, and the rule as two flags."""
    *first, gates, rule, norm_weight, norm_bias, eps = arguments
    return *first, *gates, norm_weight, norm_bias, eps, *rule.flags
