"""Everything between a mixer's two linear projections as one operation with gradients, for CUDA devices.

`infer/gated_mixer.py` has most of it for inference, where nothing is kept.
"""

from __future__ import annotations

from torch import Tensor

from crispseg.ops.dispatch import FLOATS, operator
from crispseg.ops.infer.gated_mixer import Mixing, gated_mixer
from crispseg.ops.maps.depthwise import depthwise3x3


@operator("convolve_mix_gate", dtypes=FLOATS, of=1)
def convolve_mix_gate(projected: Tensor, conv_weight: Tensor, conv_bias: Tensor, mixing: Mixing) -> Tensor:
    """LayerNorm(ncssd(V, B, C, softplus(dt + dt_bias) exp(a_log))) * z, with (V B C) = silu(conv(xbc) + conv_bias).

    projected: z, xbc, dt side by side (B, H, W, inner + (inner + 2N) + heads), and perhaps columns that nobody needs.
    conv_weight (inner + 2N, 1, 3, 3). The result is (B, H, W, inner), in the precision of `projected`.
    """
    z, xbc, dt = mixing.split(projected, len(conv_weight))
    xbc = depthwise3x3(xbc, conv_weight, conv_bias, activation="silu")
    xbc, dt, gate = (x.flatten(1, 2) for x in (xbc, dt, z))
    return gated_mixer.formula(xbc, dt, gate, mixing).view(z.shape)
