# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The operator's backward pass as Triton kernels: its sweeps over the tokens, and what is done with sums between them
and after; formulas in `backward.py`.

WIDTH is that of all heads side by side, COLUMNS what of it a program takes at a time. Blocks of half precision that
are only multiplied go into the products as they are loaded. EVEN: TOKENS divides all tokens. Then no load needs a mask,
and none has one: of loads with masks, the compiler has each wait for the one before, unless a loop brings them ahead.
"""

from __future__ import annotations

import triton
import triton.language as tl

from crispseg.ops.common.column_sums import sum_rows
from crispseg.ops.common.dependent_launch import after_the_kernel_before
from crispseg.ops.common.rounding import rounded
from crispseg.ops.nc_ssd.kernels import add_product, at, block, close_product, feature, normaliser

FEW = tl.constexpr(16)  # parts that are added at a time; columns, where time is of no account


@triton.jit
def sum_of(parts, count, SOME: tl.constexpr):
    """The sum of numbers side by side, SOME at a time."""
    total = tl.zeros((SOME,), tl.float32)
    places = tl.arange(0, SOME)
    for start in range(0, count, SOME):
        total += tl.load(parts + start + places, mask=places < count - start, other=0.0)
    return tl.sum(total)


@triton.jit
def matrix_block(base, rows, columns, row_stride, column_stride, row_end, column_end, ALL: tl.constexpr):
    """A block of tokens, or of a state. ALL: nothing of it lies outside."""
    places = base + rows[:, None] * row_stride + columns[None, :] * column_stride
    inside = (rows < row_end)[:, None] & (columns < column_end)[None, :]
    return tl.load(places) if ALL else tl.load(places, mask=inside, other=0.0)


@triton.jit
def features(x, rows, columns, row_end, column_end, NORMALIZED: tl.constexpr, ALL: tl.constexpr):
    """K or Q of a block of tokens. ALL: nothing of it lies outside."""
    x = feature(x.to(tl.float32), NORMALIZED)
    if not ALL:
        x = tl.where((rows < row_end)[:, None] & (columns < column_end)[None, :], x, 0.0)
    return x


@triton.jit
def gain_of(rho, rows, stride, end, head, residual, EVEN: tl.constexpr):
    """rho of one head's tokens, and w."""
    rho += rows * stride
    raw = (tl.load(rho) if EVEN else tl.load(rho, mask=rows < end, other=0.0)).to(tl.float32)
    w = raw
    if residual is not None:
        g = tl.load(residual + head).to(tl.float32)
        w = (1 - g) * w + g
    return raw, w


@triton.jit
def state_gradients(
    grad, c, k, q, dstate_parts, dshift_parts, tokens, chunk, floor,
    grad_batch, grad_token, grad_width, c_batch, c_token, c_state,
    N: tl.constexpr, NP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, TOKENS: tl.constexpr,
    EVEN: tl.constexpr, NORMALIZED: tl.constexpr, PRODUCT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Some columns of dA, but for what the queries' mean does, and dshift, over a chunk of tokens."""
    after_the_kernel_before(DEPENDENT)
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
    mean = tl.load(q + batch * N + n, mask=n < N, other=0.0) / tokens
    for start in range(0, end, TOKENS):
        left = end - start
        raw = matrix_block(c, rows, n, c_token, c_state, left, N, EVEN and N == NP)
        g = matrix_block(grad, rows, columns, grad_token, grad_width, left, WIDTH, EVEN and WIDTH % COLUMNS == 0)
        query = features(raw, rows, n, left, N, NORMALIZED, EVEN and N == NP)
        if NORMALIZED:
            _, scale = normaliser(query, k_total, floor)
            query = query * scale[:, None]
        dstate = close_product(tl.trans(query - mean[None, :]), g, dstate, PRODUCT)  # for the gates' sake
        dshift += g.to(tl.float32)
        grad += TOKENS * grad_token
        c += TOKENS * c_token

    part = batch * tl.num_programs(1) + split
    out = at(dstate_parts, part, N * WIDTH) + n[:, None] * WIDTH + columns[None, :]
    tl.store(out, dstate, mask=(n < N)[:, None] & (columns < WIDTH)[None, :])
    tl.store(at(dshift_parts, part, WIDTH) + columns, tl.sum(dshift, 0), mask=columns < WIDTH)


@triton.jit
def query_gradients(
    grad, c, k, state, lift, dq_parts, dlift_parts, dc, dk_parts, tokens, floor,
    grad_batch, grad_token, grad_width, c_batch, c_token, c_state, dc_token,
    N: tl.constexpr, NP: tl.constexpr, PARTS_OF_Q: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr, EVEN: tl.constexpr, NORMALIZED: tl.constexpr, PRODUCT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """dC of a block of tokens, and its part of dk."""
    after_the_kernel_before(DEPENDENT)
    tile, batch = tl.program_id(0), tl.program_id(1)
    n, rows, column = tl.arange(0, NP), tl.arange(0, TOKENS), tl.arange(0, COLUMNS)
    first = tile * TOKENS
    left = tokens - first
    grad = at(at(grad, batch, grad_batch), first, grad_token)
    c = at(at(c, batch, c_batch), first, c_token)
    dc = at(dc, batch.to(tl.int64) * tokens + first, dc_token)
    state = at(state, batch, N * WIDTH)
    ALL: tl.constexpr = WIDTH % COLUMNS == 0

    raw = matrix_block(c, rows, n, c_token, c_state, left, N, EVEN and N == NP)
    x = tl.zeros((TOKENS, NP), tl.float32)  # what reaches the queries through the state
    for across in range(0, WIDTH, COLUMNS):
        here = across + column
        g = matrix_block(grad, rows, here, grad_token, grad_width, left, WIDTH, EVEN and ALL)
        some = matrix_block(state, n, here, WIDTH, 1, N, WIDTH, ALL and N == NP)
        x = add_product(g, tl.trans(some), x, PRODUCT)
    x += sum_rows(at(dq_parts, batch * PARTS_OF_Q, N), PARTS_OF_Q, n, N, FEW, N == NP)[None, :]
    query = features(raw, rows, n, left, N, NORMALIZED, EVEN and N == NP)
    if NORMALIZED:
        k_total = tl.load(k + batch * N + n, mask=n < N, other=0.0)
        row, scale = normaliser(query, k_total, floor)
        of_row = -scale * tl.sum(query * x, 1)
        if tl.min(row) < floor:  # which is rare
            at_floor = tl.zeros((TOKENS,), tl.float32)
            for across in range(0, WIDTH, FEW):
                here = across + tl.arange(0, FEW)
                g = matrix_block(grad, rows, here, grad_token, grad_width, left, WIDTH, False).to(tl.float32)
                at_floor += tl.sum(g * tl.load(lift + batch * WIDTH + here, mask=here < WIDTH, other=0.0)[None, :], 1)
            at_floor += sum_of(dlift_parts + batch * PARTS_OF_Q, PARTS_OF_Q, 128)
            of_row = tl.where(row >= floor, of_row, at_floor)
        dk = tl.sum((scale * of_row)[:, None] * query, 0)
        tl.store(at(dk_parts, batch * tl.num_programs(0) + tile, N) + n, dk, mask=n < N)
        x = scale[:, None] * (x + of_row[:, None] * k_total[None, :])
        x *= tl.minimum(query, 1.0)  # which is the feature's derivative
    inside = (rows < left)[:, None] & (n < N)[None, :]
    tl.store(dc + rows[:, None] * dc_token + n[None, :], x.to(dc.dtype.element_ty), mask=inside)


@triton.jit
def key_gradients(
    v, b, rho, residual, dsums, dk, db, left,
    v_token, v_width, b_token, b_state, rho_token, rho_head, db_token,
    N: tl.constexpr, H: tl.constexpr, P: tl.constexpr, NP: tl.constexpr, PP: tl.constexpr, TOKENS: tl.constexpr,
    EVEN: tl.constexpr, NORMALIZED: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """dB of a block of tokens: the values are multiplied before their gain, so that they need no rounding."""
    n, p, rows = tl.arange(0, NP), tl.arange(0, PP), tl.arange(0, TOKENS)
    dkey = tl.zeros((TOKENS, NP), tl.float32)
    for head in range(H):
        value = matrix_block(v, rows, p, v_token, v_width, left, P, EVEN and P == PP)
        summed = matrix_block(dsums, n, p, H * P, 1, N, P, N == NP and P == PP)
        _, gain = gain_of(rho, rows, rho_token, left, head, residual, EVEN)
        dkey += gain[:, None] * add_product(value, tl.trans(summed), tl.zeros((TOKENS, NP), tl.float32), PRODUCT)
        v += P * v_width
        dsums += P
        rho += rho_head
    if NORMALIZED:
        raw = matrix_block(b, rows, n, b_token, b_state, left, N, EVEN and N == NP)
        key = features(raw, rows, n, left, N, NORMALIZED, EVEN and N == NP)
        dkey = (dkey + dk[None, :]) * tl.minimum(key, 1.0)
    inside = (rows < left)[:, None] & (n < N)[None, :]
    tl.store(db + rows[:, None] * db_token + n[None, :], dkey.to(db.dtype.element_ty), mask=inside)


@triton.jit
def token_gradients(
    grad, v, b, rho, residual, skip, dsums, dk_parts, dmean_parts, dv_mean, dv, db, drho, dskip_parts, dresidual_parts,
    tokens, parts,
    grad_batch, grad_token, grad_width, v_batch, v_token, v_width, b_batch, b_token, b_state, rho_batch, rho_token,
    rho_head, dv_token, db_token,
    N: tl.constexpr, H: tl.constexpr, P: tl.constexpr, NP: tl.constexpr, PP: tl.constexpr, PARTS_OF_Q: tl.constexpr,
    TOKENS: tl.constexpr, EVEN: tl.constexpr, NORMALIZED: tl.constexpr, PRODUCT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Of a block of tokens, the first program finds dB; each other dV and drho of a head, and the block's part of what
    the head's skip and residual gate get."""
    after_the_kernel_before(DEPENDENT)
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
    token = batch.to(tl.int64) * tokens + first  # the block's place in the results, whose tokens are evenly spaced
    if role == 0:
        dk = tl.zeros((NP,), tl.float32)
        if NORMALIZED:
            dk = sum_rows(at(dk_parts, batch * parts, N), parts, n, N, FEW, N == NP)
            dk -= sum_rows(at(dmean_parts, batch * PARTS_OF_Q, N), PARTS_OF_Q, n, N, FEW, N == NP)
        key_gradients(
            v, b, rho, residual, dsums, dk, at(db, token, db_token), left,
            v_token, v_width, b_token, b_state, rho_token, rho_head, db_token,
            N, H, P, NP, PP, TOKENS, EVEN, NORMALIZED, PRODUCT,
        )  # fmt: skip
    else:
        head = role - 1
        here = head * P + p
        rho += head * rho_head
        grad = at(at(at(grad, batch, grad_batch), first, grad_token), head * P, grad_width)
        value = matrix_block(at(v, head * P, v_width), rows, p, v_token, v_width, left, P, EVEN and P == PP)
        g = matrix_block(grad, rows, p, grad_token, grad_width, left, P, EVEN and P == PP)
        summed = matrix_block(dsums + head * P, n, p, WIDTH, 1, N, P, N == NP and P == PP)
        raw = matrix_block(b, rows, n, b_token, b_state, left, N, EVEN and N == NP)
        raw_rho, gain = gain_of(rho, rows, rho_token, left, head, residual, EVEN)
        key = features(raw, rows, n, left, N, NORMALIZED, EVEN and N == NP)
        value, g = value.to(tl.float32), g.to(tl.float32)
        y = add_product(key, summed, tl.zeros((TOKENS, PP), tl.float32), PRODUCT)

        dvalue = gain[:, None] * y + g * tl.load(skip + here, mask=p < P, other=0.0)[None, :]
        if dv_mean is not None:
            dvalue += tl.load(dv_mean + batch * WIDTH + here, mask=p < P, other=0.0)[None, :]
        inside = (rows < left)[:, None] & (p < P)[None, :]
        out = at(dv, token, dv_token) + rows[:, None] * dv_token + here[None, :]
        tl.store(out, dvalue.to(dv.dtype.element_ty), mask=inside)
        dgain = tl.sum(value * y, 1)
        part = (head * tl.num_programs(1) + batch) * tiles + tile
        tl.store(dskip_parts + part, tl.sum(g * value))
        if residual is not None:
            r = tl.load(residual + head).to(tl.float32)
            tl.store(dresidual_parts + part, tl.sum(dgain * (1 - raw_rho)))
            dgain *= 1 - r
        tl.store(drho + token * H + rows * H + head, dgain.to(drho.dtype.element_ty), mask=rows < left)


@triton.jit
def one_plus(gate, places, end):
    """1 + a gate at its places; 1 without one."""
    x = tl.full(places.shape, 1.0, tl.float32)
    if gate is not None:
        x += tl.load(gate + places, mask=places < end, other=0.0).to(tl.float32)
    return x


@triton.jit
def as_multiplied(x, PRODUCT: tl.constexpr):
    """A state in the precision of the products: bfloat16; or cut to TF32's digits, as the matrix unit would."""
    if PRODUCT == "half":
        x = rounded(x)
    elif PRODUCT == "tf32":
        x = ((x.to(tl.uint32, bitcast=True) + 0x1000) & 0xFFFFE000).to(tl.float32, bitcast=True)
    return x


@triton.jit
def combine(
    dstate_parts, dshift_parts, kv, k, q, mu, d, omega, s, t, state, lift, skip, dsums, dq_parts, dlift_parts,
    dmean_parts, dshift, dkeep, damplify, tokens, splits,
    N: tl.constexpr, H: tl.constexpr, P: tl.constexpr, NP: tl.constexpr, COLUMNS: tl.constexpr,
    NORMALIZED: tl.constexpr, AMPLIFIED: tl.constexpr, PRODUCT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Some columns of what the sweeps after this one read, and of what the gates get from one image. AMPLIFIED: the
    skip, as well."""
    after_the_kernel_before(DEPENDENT)
    program, batch = tl.program_id(0), tl.program_id(1)
    WIDTH: tl.constexpr = H * P
    n, columns = tl.arange(0, NP), program * COLUMNS + tl.arange(0, COLUMNS)
    here = columns < WIDTH
    inside = (n < N)[:, None] & here[None, :]
    place = n[:, None] * WIDTH + columns[None, :]
    apart = tl.zeros((NP, COLUMNS), tl.float32)  # dA without what the queries' mean does
    shift = tl.zeros((COLUMNS,), tl.float32)
    ALL: tl.constexpr = N == NP and WIDTH % COLUMNS == 0
    for split in tl.range(0, splits, loop_unroll_factor=4):
        part = batch * splits + split
        apart += matrix_block(at(dstate_parts, part, N * WIDTH), n, columns, WIDTH, 1, N, WIDTH, ALL)
        if ALL:
            shift += tl.load(at(dshift_parts, part, WIDTH) + columns)
        else:
            shift += tl.load(at(dshift_parts, part, WIDTH) + columns, mask=here, other=0.0)

    heads = columns // P
    gained = one_plus(omega, heads, H)
    amplify = gained * one_plus(t, columns % P, P)
    keep = one_plus(s, columns % P, P)
    image = batch * WIDTH + columns
    mean = tl.load(mu + image, mask=here, other=0.0)
    sums = tl.load(at(kv, batch, N * WIDTH) + place, mask=inside, other=0.0)
    queries = tl.load(q + batch * N + n, mask=n < N, other=0.0)
    dmu = (keep - amplify) * shift / tokens
    total = apart + queries[:, None] * (shift / tokens)[None, :]
    if NORMALIZED:
        keys = tl.load(k + batch * N + n, mask=n < N, other=0.0)
        sums -= keys[:, None] * mean[None, :]

    tl.store(at(state, batch, N * WIDTH) + place, as_multiplied(sums * amplify[None, :], PRODUCT), mask=inside)
    of_sums = as_multiplied(total * amplify[None, :] + queries[:, None] * dmu[None, :], PRODUCT)
    tl.store(at(dsums, batch, N * WIDTH) + place, of_sums, mask=inside)
    part = batch * tl.num_programs(0) + program
    tl.store(at(dq_parts, part, N) + n, tl.sum(sums * dmu[None, :], 1), mask=n < N)
    of_keep = shift * mean
    of_amplify = tl.sum(apart * sums, 0)
    if NORMALIZED:
        tl.store(lift + image, amplify * mean, mask=here)
        tl.store(dlift_parts + part, tl.sum(mean * dmu))
        tl.store(at(dmean_parts, part, N) + n, tl.sum(of_sums.to(tl.float32) * mean[None, :], 1), mask=n < N)
        if tl.sum(queries * keys) < (1 - 1e-5) * tokens:  # some rows are at the floor
            of_amplify += tl.sum((total - apart) * sums, 0) + mean * (tl.sum(total * keys[:, None], 0) - shift)
    tl.store(dshift + image, shift, mask=here)
    tl.store(dkeep + image, of_keep, mask=here)
    tl.store(damplify + image, of_amplify, mask=here)
    if batch == 0:
        of_skip = tl.load(d + heads, mask=here, other=0.0).to(tl.float32)
        tl.store(skip + columns, of_skip * amplify if AMPLIFIED else of_skip, mask=here)


@triton.jit
def parameter_gradients(
    dskip_parts, dresidual_parts, dkeep, damplify, omega, t, dd, dresidual, domega, ds, dt, batches, parts,
    H: tl.constexpr, P: tl.constexpr, PP: tl.constexpr, BATCHES: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, SOME: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The first programs find a number each: what a head's skip gets, its residual gate, its omega; the others some
    columns of what s and t get, where images and heads are ROWS."""
    after_the_kernel_before(DEPENDENT)
    kind, head = tl.program_id(0) // H, tl.program_id(0) % H
    if kind == 0:
        tl.store(dd + head, sum_of(at(dskip_parts, head, parts), parts, SOME).to(dd.dtype.element_ty))
    elif kind == 1:
        if dresidual is not None:
            found = sum_of(at(dresidual_parts, head, parts), parts, SOME)
            tl.store(dresidual + head, found.to(dresidual.dtype.element_ty))
    elif kind == 2:
        if domega is not None:
            width, images = tl.arange(0, PP), tl.arange(0, BATCHES)
            total = tl.zeros((BATCHES, PP), tl.float32)
            for start in range(0, batches, BATCHES):
                total += block(damplify + head * P, start + images, width, H * P, 1, batches, P)
            total *= one_plus(t, width, P)[None, :]
            tl.store(domega + head, tl.sum(total).to(domega.dtype.element_ty))
    else:
        p = (tl.program_id(0) - 3 * H) * COLUMNS + tl.arange(0, COLUMNS)
        kept = tl.zeros((ROWS, COLUMNS), tl.float32)
        amplified = tl.zeros((ROWS, COLUMNS), tl.float32)
        for first in range(0, batches * H, ROWS):
            row = first + tl.arange(0, ROWS)
            if ds is not None:
                kept += block(dkeep, row, p, P, 1, batches * H, P)
            if dt is not None:
                amplified += block(damplify, row, p, P, 1, batches * H, P) * one_plus(omega, row % H, H)[:, None]
        if ds is not None:
            tl.store(ds + p, tl.sum(kept, 0).to(ds.dtype.element_ty), mask=p < P)
        if dt is not None:
            tl.store(dt + p, tl.sum(amplified, 0).to(dt.dtype.element_ty), mask=p < P)
