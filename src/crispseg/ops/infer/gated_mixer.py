"""Everything between a mixer's depthwise convolution and its output projection, as one operation for inference."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import functional

from crispseg.ops import ncssd
from crispseg.ops.common.norm import Norm
from crispseg.ops.common.precision import widened
from crispseg.ops.dispatch import FLOATS, operator
from crispseg.ops.nc_ssd.spec import Gates, Rule


class Mixing(NamedTuple):
    """What a mixer learnt, and how it fuses: NC-SSD's parameters and the LayerNorm after it."""

    dt_bias: Tensor  # (H,), likewise `a_log` and `d`
    a_log: Tensor
    d: Tensor
    gates: Gates
    rule: Rule
    norm: Norm  # of (inner,)

    def split(self, projected: Tensor, mixed: int) -> tuple[Tensor, ...]:
        """z, xBC and dt, which lie side by side (..., inner + mixed + H), perhaps with columns that nobody needs."""
        inner, heads = len(self.norm.weight), len(self.d)
        return projected.split([inner, mixed, heads, projected.shape[-1] - inner - mixed - heads], dim=-1)[:3]

    def tokens(self, xbc: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """V (B, L, H, P), B and C (B, L, N) of xBC (B, L, inner + 2N)."""
        inner = len(self.norm.weight)
        state = (xbc.shape[-1] - inner) // 2
        v, b, c = xbc.split([inner, state, state], dim=-1)
        return v.unflatten(-1, (len(self.d), -1)), b, c

    @property
    def flat(self) -> tuple[Any, ...]:
        """As a custom operator takes it, by `FLAT`: the gates one by one, and the rule as two flags."""
        return self.dt_bias, self.a_log, self.d, *self.gates, *self.norm, *self.rule.flags

    @classmethod
    def of_flat(cls, dt_bias: Tensor, a_log: Tensor, d: Tensor, *rest: Any) -> Mixing:
        return cls(dt_bias, a_log, d, Gates(*rest[:4]), Rule.of_flags(*rest[7:]), Norm(*rest[4:7]))


FLAT = (
    "Tensor dt_bias, Tensor a_log, Tensor d, Tensor? residual, Tensor? omega, Tensor? s, Tensor? t, "
    "Tensor norm_weight, Tensor norm_bias, float eps, bool normalized, bool skip_before"
)


def _tensors(xbc: Tensor, dt: Tensor, z: Tensor, mixing: Mixing) -> tuple[Tensor, ...]:
    return xbc, dt, z, *mixing[:3], *(x for x in mixing.gates if x is not None)


@operator("gated_mixer", dtypes=FLOATS, gradients="none", of=_tensors)
def gated_mixer(xbc: Tensor, dt: Tensor, z: Tensor, mixing: Mixing) -> Tensor:
    """LayerNorm(ncssd(V, B, C, softplus(dt + dt_bias) exp(a_log))) * z, in z's precision: (B, L, inner).

    xbc: V, B and C side by side (B, L, inner + 2N), convolved and activated. dt (B, L, H), z (B, L, inner). These may
    be views into wider tensors; the kernels copy nothing.
    """
    v, b, c = mixing.tokens(xbc)
    rho = functional.softplus(widened(dt) + widened(mixing.dt_bias)) * widened(mixing.a_log).exp()
    y = ncssd(v, b, c, rho, mixing.d, mixing.gates, mixing.rule).flatten(2)
    weight, bias, eps = mixing.norm
    return functional.layer_norm(y, weight.shape, weight.to(y.dtype), bias.to(y.dtype), eps).to(z.dtype) * z
