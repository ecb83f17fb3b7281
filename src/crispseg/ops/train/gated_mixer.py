"""Everything between a mixer's two linear projections as one operation with gradients, for CUDA devices.

`infer/gated_mixer.py` has most of it for inference, where nothing is kept.
"""

from __future__ import annotations

from torch import Tensor

from crispseg.ops.dispatch import FLOATS, operator
from crispseg.ops.infer.gated_mixer import gated_mixer
from crispseg.ops.maps.depthwise import depthwise3x3
from crispseg.ops.nc_ssd.spec import Gates, Rule


@operator("convolve_mix_gate", dtypes=FLOATS, of=1)
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
