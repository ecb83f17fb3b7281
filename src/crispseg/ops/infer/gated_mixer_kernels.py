# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Read-out, calibration, LayerNorm and gate in one Triton kernel, launched by `gated_mixer_launch.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from crispseg.ops.common.dependent_launch import after_the_kernel_before
from crispseg.ops.nc_ssd.kernels import at, block, feature_block, product


@triton.jit
def read_out_gated(
    v, c, z, k, state, affine, weight, bias, out, tokens, floor, eps,
    v_batch, v_token, v_width, c_batch, c_token, c_state, z_batch, z_token, z_width,
    N: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, SOME: tl.constexpr, NP: tl.constexpr,
    TOKENS: tl.constexpr, NORMALIZED: tl.constexpr, PRODUCT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Output, LayerNorm and gate of a block of tokens, all channels at once; SOME of the state's rows at a time."""
    after_the_kernel_before(EARLY)
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
        y = product(query, some, y, PRODUCT)
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
