# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The gated mixer in four Triton kernels; `gated_mixer.py` says what it computes. The last is here: read-out,
calibration, LayerNorm and gate in one."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops import dispatch
from crispseg.ops.common.custom import custom_op
from crispseg.ops.common.dependent_launch import after_the_kernel_before
from crispseg.ops.common.hardware import multiprocessors, padded
from crispseg.ops.infer import gated_mixer as mixer
from crispseg.ops.infer.gated_mixer import FLAT, Mixing
from crispseg.ops.nc_ssd.kernels import add_product, at, block, feature_block
from crispseg.ops.nc_ssd.launch import Sizes, Tiling, product_of, sum_states, takes
from crispseg.ops.nc_ssd.spec import normaliser_floor

LARGEST_WIDTH = 2048
_TILING = Tiling(32, 4, 3)  # at most
_LARGEST_BLOCK = 16384  # tokens x channels that the registers of a program hold
_STATE_BLOCK = 16384  # rows x channels of the state that it multiplies at a time
_BESIDE = 1024  # bytes of shared memory that it takes beside blocks of the state, at most


@triton.jit
def _read_out_gated(
    v, c, z, k, state, affine, weight, bias, out, tokens, floor, eps,
    v_batch, v_token, v_width, c_batch, c_token, c_state, z_batch, z_token, z_width,
    N: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, SOME: tl.constexpr, NP: tl.constexpr,
    TOKENS: tl.constexpr, NORMALIZED: tl.constexpr, PRODUCT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Output, LayerNorm and gate of a block of tokens, all channels at once; SOME of the state's rows at a time."""
    after_the_kernel_before(DEPENDENT)
    first, batch = tl.program_id(0) * TOKENS, tl.program_id(1)
    channel, rows = tl.arange(0, PADDED), tl.arange(0, TOKENS)
    v = at(at(v, batch, v_batch), first, v_token)
    c = at(at(c, batch, c_batch), first, c_token)
    z = at(at(z, batch, z_batch), first, z_token)
    out = at(out, batch.to(tl.int64) * tokens + first, WIDTH)
    state = at(state, batch, N * WIDTH)
    left = tokens - first

    # loaded before they are needed, so that they arrive while the products are made
    value = block(v, rows, channel, v_token, v_width, left, WIDTH, WIDTH == PADDED)
    gate = block(z, rows, channel, z_token, z_width, left, WIDTH, WIDTH == PADDED)
    y = tl.zeros((TOKENS, PADDED), tl.float32)
    row = tl.zeros((TOKENS,), tl.float32)
    for start in range(0, NP, SOME):
        n = start + tl.arange(0, SOME)
        query = feature_block(c, rows, n, c_token, c_state, left, N, NORMALIZED, N == NP)
        some = (
            tl.load(state + n[:, None] * WIDTH + channel[None, :])
            if N == NP and WIDTH == PADDED
            else block(state, n, channel, WIDTH, 1, N, WIDTH)
        )
        y = add_product(query, some, y, PRODUCT)
        if NORMALIZED:
            row += tl.sum(query * tl.load(k + batch * N + n, mask=n < N, other=0.0)[None, :], 1)

    here = channel < WIDTH
    affine = affine + batch * 3 * WIDTH + channel
    if NORMALIZED:
        scale = 1 / tl.maximum(row, floor)
        lift = tl.load(affine, mask=here, other=0.0)
        y = y * scale[:, None] + (scale * row)[:, None] * lift[None, :]
    shift = tl.load(affine + WIDTH, mask=here, other=0.0)
    skip = tl.load(affine + 2 * WIDTH, mask=here, other=0.0)
    y += shift[None, :] + skip[None, :] * value.to(tl.float32)

    y -= (tl.sum(y, 1) / WIDTH)[:, None]
    y = tl.where(here[None, :], y, 0.0)
    y *= tl.rsqrt(tl.sum(y * y, 1) / WIDTH + eps)[:, None]
    y *= tl.load(weight + channel, mask=here, other=0.0).to(tl.float32)[None, :]
    y += tl.load(bias + channel, mask=here, other=0.0).to(tl.float32)[None, :]
    kind = out.dtype.element_ty
    y = (y.to(kind).to(tl.float32) * gate.to(tl.float32)).to(kind)  # rounded before the gate as the network does
    tl.store(out + rows[:, None] * WIDTH + channel[None, :], y, mask=(rows < left)[:, None] & here[None, :])


@mixer.gated_mixer.unless
def why_not(xbc: Tensor, dt: Tensor, z: Tensor, mixing: Mixing) -> str | None:
    inner = z.shape[-1]
    largest = LARGEST_WIDTH if product_of(xbc) == "half" else LARGEST_WIDTH // 2
    supported = inner % len(mixing.d) == 0 and padded(inner) <= largest
    supported = supported and takes(*mixing.tokens(xbc), dt, (), mixing.rule)
    return None if supported else "sizes or a rule that it does not know"


@mixer.gated_mixer.kernel
def gated_mixer(xbc: Tensor, dt: Tensor, z: Tensor, mixing: Mixing) -> Tensor:
    return _gated_mixer(xbc, dt, z, *mixing.flat)


@custom_op(
    "gated_mixer",
    like=lambda xbc, dt, z, *rest: torch.empty_like(z, memory_format=torch.contiguous_format),
    schema=f"(Tensor xbc, Tensor dt, Tensor z, {FLAT}) -> Tensor",
)
def _gated_mixer(xbc: Tensor, dt: Tensor, z: Tensor, *flat: Any) -> Tensor:
    mixing = Mixing.of_flat(*flat)
    normalized = mixing.rule.fusion == "normalized"
    batch, tokens, inner = z.shape
    v, b, c = mixing.tokens(xbc)
    state = b.shape[-1]
    out = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    gain = mixing.dt_bias, mixing.a_log
    states = sum_states(v, b, c, dt, mixing.d, mixing.gates, mixing.rule, gain)
    product = product_of(v, b, c)
    tiling = _choose(Sizes.of(v, b), product, z.device)
    width = padded(inner)
    _read_out_gated[(triton.cdiv(tokens, tiling.tokens), batch)](
        v, c, z, states.k, states.read, states.affine, mixing.norm.weight, mixing.norm.bias, out,
        tokens, normaliser_floor(c.dtype), mixing.norm.eps, *v.stride()[:2], v.stride(3), *c.stride(), *z.stride(),
        N=state, WIDTH=inner, PADDED=width, SOME=_some(state, width),
        NP=padded(state), NORMALIZED=normalized, PRODUCT=product, **tiling.launch(z.device),
    )  # fmt: skip
    return out


def _some(state: int, width: int) -> int:
    """Rows of the state at a time."""
    return max(16, min(padded(state), _STATE_BLOCK // width))


def _choose(sizes: Sizes, product: str, device: torch.device) -> Tiling:
    """As many tokens as the registers hold, but no multiprocessor idle; warps by the size of the block. Two float32
    blocks of the state would not fit the shared memory, so there is one stage only; in bfloat16 all of it does."""
    tiling, width = _TILING, padded(sizes.inner)
    block = tiling.tokens
    enough = 0.9 * multiprocessors(device)
    while block > 16 and (block * width > _LARGEST_BLOCK or sizes.batch * triton.cdiv(sizes.tokens, block) < enough):
        block //= 2
    warps = max(tiling.warps, min(16, block * width // (1024 if width <= 256 else 2048)))
    stages = tiling.stages + (width > 512) if product == "half" else 1
    stage = 2 * _some(sizes.state, width) * width  # bytes of a block of the state
    while stages > 1 and stages * stage + _BESIDE > dispatch.shared_memory(device):
        stages -= 1
    return tiling._replace(tokens=block, warps=warps, stages=stages)
