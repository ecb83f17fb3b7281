"""Everything between a mixer's depthwise convolution and its output projection, as one operation for inference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops import BACKENDS, forced_backend, ncssd
from crispseg.ops.common.precision import widened
from crispseg.ops.dispatch import exporting
from crispseg.ops.nc_ssd.spec import Gates, Rule

if "triton" in BACKENDS:
    from crispseg.ops.infer import gated_mixer_launch


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
    eps: float = 1e-5,
    backend: str | None = None,
) -> Tensor:
    """LayerNorm(ncssd(V, B, C, softplus(dt + dt_bias) exp(a_log))) * z, in z's precision: (B, L, inner).

    xbc: V, B and C side by side (B, L, inner + 2N), convolved and activated. dt (B, L, H), z (B, L, inner). These may
    be views into wider tensors; nothing is copied. dt_bias, a_log, d (H,); norm_weight, norm_bias (inner,).
    `backend` as in `crispseg.ops.ncssd`. The Triton kernels give no gradients: they are taken only where none are
    wanted, unless forced.
    """
    arguments = (xbc, dt, z, dt_bias, a_log, d, gates, rule, norm_weight, norm_bias, eps)
    name = forced_backend(backend)
    if name == "triton" or (name is None and _triton_takes(xbc, dt, z, dt_bias, a_log, d, gates, rule)):
        return gated_mixer_launch.gated_mixer(*arguments)
    return _formula(*arguments, name)


def _triton_takes(xbc: Tensor, dt: Tensor, z: Tensor, *rest: Any) -> bool:
    *parameters, gates, rule = rest
    tensors = (xbc, dt, z, *parameters, *(x for x in gates if x is not None))
    without_gradients = not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors)
    return (
        "triton" in BACKENDS
        and xbc.is_cuda
        and without_gradients
        and not exporting()
        and gated_mixer_launch.supports(xbc, dt, z, rule)
    )


def _formula(
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
    backend: str | None,
) -> Tensor:
    inner = z.shape[-1]
    state = (xbc.shape[-1] - inner) // 2
    v, b, c = xbc.split([inner, state, state], dim=-1)
    rho = functional.softplus(widened(dt) + widened(dt_bias)) * widened(a_log).exp()
    y = ncssd(v.unflatten(-1, (dt.shape[-1], -1)), b, c, rho, d, gates, rule, backend)  # v (B, L, H, P)
    y = functional.layer_norm(y.flatten(2), (inner,), norm_weight.to(y.dtype), norm_bias.to(y.dtype), eps)
    return y.to(z.dtype) * z
