# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The sweeps over the tokens of the operator's backward pass, as Triton kernels; formulas in `ncssd_backward.py`.

WIDTH is that of all heads side by side, COLUMNS what of it a program takes at a time. Blocks of half precision that
are only multiplied go into the products as they are loaded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from crispseg.ops.kernels.early import after_the_kernel_before
from crispseg.ops.kernels.ncssd import at, block, feature_block, head_gain, normaliser, product, sum_parts

FEW = tl.constexpr(16)  # columns: no product has fewer


@triton.jit
def sum_of(parts, count, SOME: tl.constexpr):
    """The sum of numbers side by side, SOME at a time."""
    total = tl.zeros((SOME,), tl.float32)
    places = tl.arange(0, SOME)
    for start in range(0, count, SOME):
        total += tl.load(parts + start + places, mask=places < count - start, other=0.0)
    return tl.sum(total)


@triton.jit
def state_block(base, rows, columns, stride, row_end, column_end, ALL: tl.constexpr):
    """A block of a state. ALL: nothing of it lies outside."""
    if ALL:
        x = tl.load(base + rows[:, None] * stride + columns[None, :])
    else:
        x = block(base, rows, columns, stride, 1, row_end, column_end)
    return x


@triton.jit
def state_gradients(
    grad,
    c,
    k,
    dstate_parts,
    dshift_parts,
    tokens,
    chunk,
    floor,
    grad_batch,
    grad_token,
    grad_width,
    c_batch,
    c_token,
    c_state,
    N: tl.constexpr,
    NP: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr,
    NORMALIZED: tl.constexpr,
    PRODUCT: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Some columns of dA and dshift, over a chunk of tokens."""
    after_the_kernel_before(EARLY)
    split, batch = tl.program_id(1), tl.program_id(2)
    n, rows = tl.arange(0, NP), tl.arange(0, TOKENS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    first = split * chunk
    grad = at(at(grad, batch, grad_batch), first, grad_token)
    c = at(at(c, batch, c_batch), first, c_token)
    end = tl.minimum(chunk, tokens - first)

    dstate = tl.zeros((NP, COLUMNS), tl.float32)
    dshift = tl.zeros((TOKENS, COLUMNS), tl.float32)
    k_total = tl.load(k + batch * N + n, mask=n < N, other=0.0) if NORMALIZED else 0.0
    for start in range(0, end, TOKENS):
        left = end - start
        query = feature_block(c, rows, n, c_token, c_state, left, N, NORMALIZED, N == NP)
        g = block(grad, rows, columns, grad_token, grad_width, left, WIDTH, WIDTH % COLUMNS == 0)
        if NORMALIZED:
            _, scale = normaliser(query, k_total, floor)
            query = query * scale[:, None]
        dstate = product(tl.trans(query), g, dstate, PRODUCT)
        dshift += g.to(tl.float32)
        grad += TOKENS * grad_token
        c += TOKENS * c_token

    part = batch * tl.num_programs(1) + split
    out = at(dstate_parts, part, N * WIDTH) + n[:, None] * WIDTH + columns[None, :]
    tl.store(out, dstate, mask=(n < N)[:, None] & (columns < WIDTH)[None, :])
    tl.store(at(dshift_parts, part, WIDTH) + columns, tl.sum(dshift, 0), mask=columns < WIDTH)


@triton.jit
def query_gradients(
    grad,
    c,
    k,
    state,
    lift,
    dq_parts,
    dlift_parts,
    dc,
    dk_parts,
    tokens,
    floor,
    grad_batch,
    grad_token,
    grad_width,
    c_batch,
    c_token,
    c_state,
    N: tl.constexpr,
    NP: tl.constexpr,
    PARTS_OF_Q: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr,
    NORMALIZED: tl.constexpr,
    PRODUCT: tl.constexpr,
    EARLY: tl.constexpr,
):
    """dC of a block of tokens, and its part of dk."""
    after_the_kernel_before(EARLY)
    tile, batch = tl.program_id(0), tl.program_id(1)
    n, rows, column = tl.arange(0, NP), tl.arange(0, TOKENS), tl.arange(0, COLUMNS)
    first = tile * TOKENS
    left = tokens - first
    grad = at(at(grad, batch, grad_batch), first, grad_token)
    c = at(at(c, batch, c_batch), first, c_token)
    dc = at(dc, batch.to(tl.int64) * tokens + first, N)
    state = at(state, batch, N * WIDTH)
    ALL: tl.constexpr = WIDTH % COLUMNS == 0

    query = feature_block(c, rows, n, c_token, c_state, left, N, NORMALIZED, N == NP)
    x = tl.zeros((TOKENS, NP), tl.float32)  # what reaches the queries through the state
    carried = tl.zeros((TOKENS, FEW), tl.float32)  # G_i lift, in one column of the fewest that a product has
    few = tl.arange(0, FEW)
    for across in range(0, WIDTH, COLUMNS):
        here = across + column
        g = block(grad, rows, here, grad_token, grad_width, left, WIDTH, ALL)
        some = state_block(state, n, here, WIDTH, N, WIDTH, ALL and N == NP)
        x = product(g, tl.trans(some), x, PRODUCT)
        if NORMALIZED:
            place = lift + batch * WIDTH + here[:, None] + few[None, :]
            first_column = (here < WIDTH)[:, None] & (few == 0)[None, :]
            carried = product(g, tl.load(place, mask=first_column, other=0.0), carried, PRODUCT)
    x += sum_parts(at(dq_parts, batch * PARTS_OF_Q, N), PARTS_OF_Q, n, N)[None, :]
    if NORMALIZED:
        k_total = tl.load(k + batch * N + n, mask=n < N, other=0.0)
        row, scale = normaliser(query, k_total, floor)
        at_floor = tl.sum(carried, 1) + sum_of(dlift_parts + batch * PARTS_OF_Q, PARTS_OF_Q, 128)
        of_row = tl.where(row >= floor, -scale * tl.sum(query * x, 1), at_floor)
        dk = tl.sum((scale * of_row)[:, None] * query, 0)
        tl.store(at(dk_parts, batch * tl.num_programs(0) + tile, N) + n, dk, mask=n < N)
        x = scale[:, None] * (x + of_row[:, None] * k_total[None, :])
        x *= tl.minimum(query, 1.0)  # which is the feature's derivative
    inside = (rows < left)[:, None] & (n < N)[None, :]
    tl.store(dc + rows[:, None] * N + n[None, :], x.to(dc.dtype.element_ty), mask=inside)


@triton.jit
def key_gradients(
    v,
    b,
    rho,
    residual,
    dsums,
    db,
    left,
    v_token,
    v_width,
    b_token,
    b_state,
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
    dk,
):
    """dB of a block of tokens: the values are multiplied before their gain, so that they need no rounding."""
    n, p, rows = tl.arange(0, NP), tl.arange(0, PP), tl.arange(0, TOKENS)
    dkey = tl.zeros((TOKENS, NP), tl.float32)
    for head in range(H):
        value = block(v, rows, p, v_token, v_width, left, P, P == PP)
        summed = state_block(dsums, n, p, H * P, N, P, N == NP and P == PP)
        gain = head_gain(rho, rows, rho_token, left, head, None, None, residual)
        dkey += gain[:, None] * product(value, tl.trans(summed), tl.zeros((TOKENS, NP), tl.float32), PRODUCT)
        v += P * v_width
        dsums += P
        rho += rho_head
    if NORMALIZED:
        key = feature_block(b, rows, n, b_token, b_state, left, N, NORMALIZED, N == NP)
        dkey = (dkey + dk[None, :]) * tl.minimum(key, 1.0)
    inside = (rows < left)[:, None] & (n < N)[None, :]
    tl.store(db + rows[:, None] * N + n[None, :], dkey.to(db.dtype.element_ty), mask=inside)


@triton.jit
def token_gradients(
    grad,
    v,
    b,
    rho,
    residual,
    skip,
    dsums,
    dk_parts,
    dmean_parts,
    dv_mean,
    dv,
    db,
    drho,
    dskip_parts,
    dresidual_parts,
    tokens,
    parts,
    grad_batch,
    grad_token,
    grad_width,
    v_batch,
    v_token,
    v_width,
    b_batch,
    b_token,
    b_state,
    rho_batch,
    rho_token,
    rho_head,
    N: tl.constexpr,
    H: tl.constexpr,
    P: tl.constexpr,
    NP: tl.constexpr,
    PP: tl.constexpr,
    PARTS_OF_Q: tl.constexpr,
    TOKENS: tl.constexpr,
    NORMALIZED: tl.constexpr,
    PRODUCT: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Of a block of tokens, the first program finds dB; each other dV and drho of a head, and the block's part of what
    the head's skip and residual gate get."""
    after_the_kernel_before(EARLY)
    role, tile, batch = tl.program_id(0) % (1 + H), tl.program_id(0) // (1 + H), tl.program_id(1)
    tiles = tl.num_programs(0) // (1 + H)
    WIDTH: tl.constexpr = H * P
    first = tile * TOKENS
    left = tokens - first
    n, p, rows = tl.arange(0, NP), tl.arange(0, PP), tl.arange(0, TOKENS)
    v = at(at(v, batch, v_batch), first, v_token)
    b = at(at(b, batch, b_batch), first, b_token)
    rho = at(at(rho, batch, rho_batch), first, rho_token)
    dsums = at(dsums, batch, N * WIDTH)
    token = batch.to(tl.int64) * tokens + first  # the block's place in the results, which are contiguous
    if role == 0:
        dk = tl.zeros((NP,), tl.float32)
        if NORMALIZED:
            dk = sum_parts(at(dk_parts, batch * parts, N), parts, n, N)
            dk -= sum_parts(at(dmean_parts, batch * PARTS_OF_Q, N), PARTS_OF_Q, n, N)
        key_gradients(
            v, b, rho, residual, dsums, db + token * N, left, v_token, v_width, b_token, b_state, rho_token, rho_head,
            N, H, P, NP, PP, TOKENS, NORMALIZED, PRODUCT, dk,
        )  # fmt: skip
    else:
        head = role - 1
        here = head * P + p
        rho += head * rho_head
        grad = at(at(grad, batch, grad_batch), first, grad_token)
        key = feature_block(b, rows, n, b_token, b_state, left, N, NORMALIZED, N == NP)
        summed = state_block(dsums + head * P, n, p, WIDTH, N, P, N == NP and P == PP)
        value = block(at(v, head * P, v_width), rows, p, v_token, v_width, left, P, P == PP).to(tl.float32)
        g = block(at(grad, head * P, grad_width), rows, p, grad_token, grad_width, left, P, P == PP).to(tl.float32)
        gain = head_gain(rho, rows, rho_token, left, head, None, None, residual)
        y = product(key, summed, tl.zeros((TOKENS, PP), tl.float32), PRODUCT)

        dvalue = gain[:, None] * y + g * tl.load(skip + here, mask=p < P, other=0.0)[None, :]
        if dv_mean is not None:
            dvalue += tl.load(dv_mean + batch * WIDTH + here, mask=p < P, other=0.0)[None, :]
        inside = (rows < left)[:, None] & (p < P)[None, :]
        out = dv + token * WIDTH + rows[:, None] * WIDTH + here[None, :]
        tl.store(out, dvalue.to(dv.dtype.element_ty), mask=inside)
        dgain = tl.sum(value * y, 1)
        part = (head * tl.num_programs(1) + batch) * tiles + tile
        tl.store(dskip_parts + part, tl.sum(g * value))
        if residual is not None:
            r = tl.load(residual + head).to(tl.float32)
            raw_rho = tl.load(rho + rows * rho_token, mask=rows < left, other=0.0).to(tl.float32)
            tl.store(dresidual_parts + part, tl.sum(dgain * (1 - raw_rho)))
            dgain *= 1 - r
        tl.store(drho + token * H + rows * H + head, dgain.to(drho.dtype.element_ty), mask=rows < left)
