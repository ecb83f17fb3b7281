# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The operator's backward pass as Triton kernels: two sweeps over the tokens; the formulas are in `triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from crispseg.ops.kernels.early import after_the_kernel_before
from crispseg.ops.kernels.ncssd import at, block, feature_block, normaliser, product


@triton.jit
def state_gradients(
    grad,
    c,
    k,
    state,
    lift,
    dstate_parts,
    dshift_parts,
    dk_parts,
    tokens,
    chunk,
    floor,
    grad_batch,
    grad_token,
    grad_head,
    grad_width,
    c_batch,
    c_token,
    c_state,
    N: tl.constexpr,
    P: tl.constexpr,
    NP: tl.constexpr,
    PP: tl.constexpr,
    TOKENS: tl.constexpr,
    NORMALIZED: tl.constexpr,
    PRODUCT: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One head's dA, dshift and dk (without M dq), over a chunk of tokens."""
    after_the_kernel_before(EARLY)
    head, split, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads, splits = tl.num_programs(0), tl.num_programs(1)
    width = heads * P
    n, p, rows = tl.arange(0, NP), tl.arange(0, PP), tl.arange(0, TOKENS)
    first = split * chunk
    grad = at(at(at(grad, batch, grad_batch), head, grad_head), first, grad_token)
    c = at(at(c, batch, c_batch), first, c_token)
    end = tl.minimum(chunk, tokens - first)

    dstate = tl.zeros((NP, PP), tl.float32)
    dshift = tl.zeros((TOKENS, PP), tl.float32)
    dk = tl.zeros((TOKENS, NP), tl.float32)
    if NORMALIZED:
        across = tl.trans(block(at(at(state, batch, N * width), head, P), n, p, width, 1, N, P))  # (P, N)
        k_total = tl.load(k + batch * N + n, mask=n < N, other=0.0)
        carried = tl.load(lift + batch * width + head * P + p, mask=p < P, other=0.0)
    for start in range(0, end, TOKENS):
        left = end - start
        query = feature_block(c, rows, n, c_token, c_state, left, N, NORMALIZED)
        g = block(grad, rows, p, grad_token, grad_width, left, P).to(tl.float32)
        if NORMALIZED:
            row, scale = normaliser(query, k_total, floor)
            x = product(g, across, tl.zeros((TOKENS, NP), tl.float32), PRODUCT)
            pull = tl.where(row >= floor, -scale * tl.sum(query * x, 1), tl.sum(g * carried[None, :], 1))
            dk += (scale * pull)[:, None] * query
            query = query * scale[:, None]
        dstate = product(tl.trans(query), g, dstate, PRODUCT)
        dshift += g
        grad += TOKENS * grad_token
        c += TOKENS * c_token

    part = batch * splits + split
    out = at(dstate_parts, part, N * width) + head * P + n[:, None] * width + p[None, :]
    tl.store(out, dstate, mask=(n < N)[:, None] & (p < P)[None, :])
    tl.store(at(dshift_parts, part, width) + head * P + p, tl.sum(dshift, 0), mask=p < P)
    if NORMALIZED:
        tl.store(at(dk_parts, part * heads + head, N) + n, tl.sum(dk, 0), mask=n < N)


@triton.jit
def query_moments(
    c,
    k,
    parts,
    tokens,
    chunk,
    floor,
    c_batch,
    c_token,
    c_state,
    N: tl.constexpr,
    NP: tl.constexpr,
    TOKENS: tl.constexpr,
    PRODUCT: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The sum of Q Q^T / row^2 over a chunk of tokens, without those whose row is at the floor."""
    after_the_kernel_before(EARLY)
    split, batch = tl.program_id(0), tl.program_id(1)
    n, rows = tl.arange(0, NP), tl.arange(0, TOKENS)
    first = split * chunk
    c = at(at(c, batch, c_batch), first, c_token)
    end = tl.minimum(chunk, tokens - first)
    k_total = tl.load(k + batch * N + n, mask=n < N, other=0.0)
    total = tl.zeros((NP, NP), tl.float32)
    for start in range(0, end, TOKENS):
        query = feature_block(c, rows, n, c_token, c_state, end - start, N, True)
        row, scale = normaliser(query, k_total, floor)
        query = query * tl.where(row >= floor, scale, 0.0)[:, None]
        total = product(tl.trans(query), query, total, PRODUCT)
        c += TOKENS * c_token
    out = at(parts, batch * tl.num_programs(0) + split, N * N) + n[:, None] * N + n[None, :]
    tl.store(out, total, mask=(n < N)[:, None] & (n < N)[None, :])


@triton.jit
def feature_slope(x, NORMALIZED: tl.constexpr):
    """The derivative of elu + 1."""
    return tl.where(x > 0, 1.0, tl.exp(x)) if NORMALIZED else tl.full(x.shape, 1.0, tl.float32)


@triton.jit
def token_gradients(
    grad,
    v,
    b,
    c,
    rho,
    residual,
    skip,
    k,
    mu,
    state,
    lift,
    dsums,
    dk,
    dq,
    dlift,
    dv_mean,
    dv,
    db,
    dc,
    drho,
    dskip_parts,
    dresidual_parts,
    tokens,
    floor,
    grad_batch,
    grad_token,
    grad_head,
    grad_width,
    v_batch,
    v_token,
    v_head,
    v_width,
    b_batch,
    b_token,
    b_state,
    c_batch,
    c_token,
    c_state,
    rho_batch,
    rho_token,
    rho_head,
    N: tl.constexpr,
    H: tl.constexpr,
    P: tl.constexpr,
    NP: tl.constexpr,
    PP: tl.constexpr,
    TOKENS: tl.constexpr,
    NORMALIZED: tl.constexpr,
    PRODUCT: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The gradients of a block of tokens, head after head; and its part of those of the skip and the residual gate."""
    after_the_kernel_before(EARLY)
    tile, batch = tl.program_id(0), tl.program_id(1)
    width = H * P
    first = tile * TOKENS
    left = tokens - first
    n, p, rows = tl.arange(0, NP), tl.arange(0, PP), tl.arange(0, TOKENS)
    grad = at(at(grad, batch, grad_batch), first, grad_token)
    v = at(at(v, batch, v_batch), first, v_token)
    b = at(at(b, batch, b_batch), first, b_token)
    c = at(at(c, batch, c_batch), first, c_token)
    rho = at(at(rho, batch, rho_batch), first, rho_token)
    token = batch.to(tl.int64) * tokens + first  # the block's place in the results, which are contiguous
    part = batch * tl.num_programs(0) + tile
    state = at(state, batch, N * width)
    dsums = at(dsums, batch, N * width)

    key = feature_block(b, rows, n, b_token, b_state, left, N, NORMALIZED)
    x = tl.zeros((TOKENS, NP), tl.float32)  # what reaches the queries through the state
    dkey = tl.zeros((TOKENS, NP), tl.float32)
    carried = tl.zeros((TOKENS,), tl.float32)
    for head in range(H):
        here = head * P + p
        g = block(grad + head * grad_head, rows, p, grad_token, grad_width, left, P).to(tl.float32)
        value = block(v + head * v_head, rows, p, v_token, v_width, left, P).to(tl.float32)
        gain = tl.load(rho + head * rho_head + rows * rho_token, mask=rows < left, other=0.0).to(tl.float32)
        of_rho = 1.0 - gain
        slope = 1.0
        if residual is not None:
            r = tl.load(residual + head).to(tl.float32)
            gain = (1 - r) * gain + r
            slope = 1 - r
        read = block(state + head * P, n, p, width, 1, N, P)
        x = product(g, tl.trans(read), x, PRODUCT)
        if NORMALIZED:
            carried += tl.sum(g * tl.load(lift + batch * width + here, mask=p < P, other=0.0)[None, :], 1)
        summed = block(dsums + head * P, n, p, width, 1, N, P)
        gained = gain[:, None] * value
        if NORMALIZED:
            gained -= tl.load(mu + batch * width + here, mask=p < P, other=0.0)[None, :]
        dkey = product(gained, tl.trans(summed), dkey, PRODUCT)
        y = product(key, summed, tl.zeros((TOKENS, PP), tl.float32), PRODUCT)

        dvalue = gain[:, None] * y + g * tl.load(skip + here, mask=p < P, other=0.0)[None, :]
        if dv_mean is not None:
            dvalue += tl.load(dv_mean + batch * width + here, mask=p < P, other=0.0)[None, :]
        inside = (rows < left)[:, None] & (p < P)[None, :]
        tl.store(
            dv + token * width + rows[:, None] * width + here[None, :], dvalue.to(dv.dtype.element_ty), mask=inside
        )
        dgain = tl.sum(value * y, 1)
        place = drho + token * H + rows * H + head
        tl.store(place, (slope * dgain).to(drho.dtype.element_ty), mask=rows < left)
        tl.store(at(dskip_parts, part, width) + here, tl.sum(g * value, 0), mask=p < P)
        tl.store(at(dresidual_parts, part, H) + head, tl.sum(dgain * of_rho, 0))

    raw = block(c, rows, n, c_token, c_state, left, N).to(tl.float32)
    x += tl.load(dq + batch * N + n, mask=n < N, other=0.0)[None, :]
    if NORMALIZED:
        query = feature_block(c, rows, n, c_token, c_state, left, N, NORMALIZED)
        k_total = tl.load(k + batch * N + n, mask=n < N, other=0.0)
        row, scale = normaliser(query, k_total, floor)
        of_row = tl.where(row >= floor, -scale * tl.sum(query * x, 1), carried + tl.load(dlift + batch))
        x = scale[:, None] * (x + of_row[:, None] * k_total[None, :])
        dkey += tl.load(dk + batch * N + n, mask=n < N, other=0.0)[None, :]
    place = token * N + rows[:, None] * N + n[None, :]
    inside = (rows < left)[:, None] & (n < N)[None, :]
    tl.store(dc + place, (x * feature_slope(raw, NORMALIZED)).to(dc.dtype.element_ty), mask=inside)
    raw = block(b, rows, n, b_token, b_state, left, N).to(tl.float32)
    tl.store(db + place, (dkey * feature_slope(raw, NORMALIZED)).to(db.dtype.element_ty), mask=inside)
