"""The gated mixer in four Triton kernels; `gated_mixer.py` says what it computes."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from crispseg.ops.common.custom import custom_op
from crispseg.ops.common.hardware import multiprocessors
from crispseg.ops.infer import gated_mixer_kernels
from crispseg.ops.nc_ssd.launch import (
    LARGEST_HEAD,
    TILINGS,
    Sizes,
    Tiling,
    launch,
    padded,
    product_of,
    sum_states,
    takes,
)
from crispseg.ops.nc_ssd.spec import Gates, Rule, normaliser_floor

LARGEST_WIDTH = 2048
_LARGEST_BLOCK = 16384  # tokens x channels that the registers of a program hold
_STATE_BLOCK = 16384  # rows x channels of the state that it multiplies at a time


def supports(xbc: Tensor, dt: Tensor, z: Tensor, rule: Rule) -> bool:
    inner, heads = z.shape[-1], dt.shape[-1]
    b = xbc[..., inner : inner + (xbc.shape[-1] - inner) // 2]
    return (
        takes(z, b, xbc, dt, rule)
        and inner % heads == 0
        and inner // heads <= LARGEST_HEAD
        and padded(inner) <= (LARGEST_WIDTH if product_of(xbc) == "half" else LARGEST_WIDTH // 2)
    )


@custom_op("gated_mixer", like=lambda xbc, dt, z, *rest: torch.empty_like(z, memory_format=torch.contiguous_format))
def gated_mixer(
    xbc: Tensor,
    dt: Tensor,
    z: Tensor,
    dt_bias: Tensor,
    a_log: Tensor,
    d: Tensor,
    residual: Tensor | None,
    omega: Tensor | None,
    s: Tensor | None,
    t: Tensor | None,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    normalized: bool,
    skip_before: bool,
) -> Tensor:
    """See `gated_mixer.gated_mixer`."""
    batch, tokens, inner = z.shape
    state = (xbc.shape[-1] - inner) // 2
    v, b, c = xbc.split([inner, state, state], dim=-1)
    heads = v.unflatten(-1, (dt.shape[-1], -1))  # (B, L, H, P)
    out = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    states = sum_states(
        heads, b, c, dt, d, Gates(residual, omega, s, t), Rule.of_flags(normalized, skip_before), (dt_bias, a_log)
    )
    product = product_of(v, b, c)
    tiling = _choose(Sizes.of(heads, b), product, z.device)
    width = padded(inner)
    gated_mixer_kernels.read_out_gated[(triton.cdiv(tokens, tiling.tokens), batch)](
        v, c, z, states.k, states.read, states.affine, norm_weight, norm_bias, out,
        tokens, normaliser_floor(c.dtype), eps, *v.stride(), *c.stride(), *z.stride(),
        N=state, WIDTH=inner, PADDED=width, SOME=max(16, min(padded(state), _STATE_BLOCK // width)),
        NP=padded(state), TOKENS=tiling.tokens, NORMALIZED=normalized, PRODUCT=product,
        **launch(tiling, z.device),
    )  # fmt: skip
    return out


def _choose(sizes: Sizes, product: str, device: torch.device) -> Tiling:
    """As many tokens as the registers hold, but no multiprocessor idle; warps by the size of the block. Two float32
    blocks of the state would not fit the shared memory, so there is one stage only; in bfloat16 all of it does."""
    tiling, width = TILINGS["read_out_gated"], padded(sizes.inner)
    block = tiling.tokens
    enough = 0.9 * multiprocessors(device)
    while block > 16 and (block * width > _LARGEST_BLOCK or sizes.batch * triton.cdiv(sizes.tokens, block) < enough):
        block //= 2
    warps = max(tiling.warps, min(16, block * width // (1024 if width <= 256 else 2048)))
    stages = tiling.stages + (width > 512) if product == "half" else 1
    return tiling._replace(tokens=block, warps=warps, stages=stages)
