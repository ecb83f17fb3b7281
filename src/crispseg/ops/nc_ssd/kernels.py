# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The operator's forward pass as Triton kernels; `operator.py` launches them and holds the algebra's account.

Names in capitals are fixed at compile time: N, P (the state's and a head's width), NP and PP (the same, rounded up to
what a matrix unit takes), TOKENS (worked on at a time), PRODUCT (the precision of matrix products: see `product_of`
in `launch.py`). Sums are float32. Offsets within a block of tokens fit 32 bits; all others are taken in 64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from crispseg.ops.common.dependent_launch import after_the_kernel_before
from crispseg.ops.common.rounding import INTERPRETED, rounded

PARTS = tl.constexpr(64)  # partial sums added at a time
SLICE = tl.constexpr(128)  # elements of the state that a program adds up


@triton.jit
def at(base, index, stride):
    return base + index.to(tl.int64) * stride


@triton.jit
def _inside(rows, columns, row_end, column_end, ALL: tl.constexpr):
    inside = (rows < row_end)[:, None]
    if not ALL:
        inside = inside & (columns < column_end)[None, :]
    return inside


@triton.jit
def block(base, rows, columns, row_stride, column_stride, row_end, column_end, ALL: tl.constexpr = False):
    """A block of a matrix, zero outside of it. ALL: no column of it lies outside."""
    inside = _inside(rows, columns, row_end, column_end, ALL)
    return tl.load(base + rows[:, None] * row_stride + columns[None, :] * column_stride, mask=inside, other=0.0)


@triton.jit
def feature(x, NORMALIZED: tl.constexpr):
    """K or Q: elu + 1 in normalized fusion."""
    return tl.where(x > 0, x + 1, tl.exp(x)) if NORMALIZED else x


@triton.jit
def feature_block(
    base, rows, columns, row_stride, column_stride, row_end, column_end, NORMALIZED: tl.constexpr,
    ALL: tl.constexpr = False,
):  # fmt: skip
    x = block(base, rows, columns, row_stride, column_stride, row_end, column_end, ALL).to(tl.float32)
    inside = _inside(rows, columns, row_end, column_end, ALL)
    return tl.where(inside, feature(x, NORMALIZED), 0.0)


@triton.jit
def add_product(x, y, total, PRODUCT: tl.constexpr):
    """total + x y."""
    if PRODUCT == "half":
        x = rounded(x)
        y = rounded(y)
        if INTERPRETED:  # which cannot multiply bfloat16
            x = x.to(tl.float32)
            y = y.to(tl.float32)
        total = tl.dot(x, y, total)
    else:
        total = tl.dot(x.to(tl.float32), y.to(tl.float32), total, input_precision=PRODUCT)
    return total


@triton.jit
def close_product(x, y, total, PRODUCT: tl.constexpr):
    """total + x y with twice the digits of bfloat16: what rounding takes from x and y is multiplied as well."""
    total = add_product(x, y, total, PRODUCT)
    if PRODUCT == "half":
        total = add_product(x - rounded(x).to(tl.float32), y, total, PRODUCT)
        if y.dtype != tl.bfloat16:
            total = add_product(x, y.to(tl.float32) - rounded(y).to(tl.float32), total, PRODUCT)
    return total


@triton.jit
def normaliser(query, k, floor):
    """row = Q k, and 1 / max(row, floor)."""
    row = tl.sum(query * k[None, :], 1)
    return row, 1 / tl.maximum(row, floor)


@triton.jit
def softplus(x):
    """log(1 + exp x), with the digits of small results kept: log(u) y / (u - 1) corrects the rounding of u = 1 + y."""
    y = tl.exp(tl.minimum(x, 20.0))
    u = 1 + y
    exact = tl.where(u == 1, y, tl.log(u) * y / (u - 1))
    return tl.where(x > 20, x, exact)


@triton.jit
def head_gain(rho, rows, stride, end, head, dt_bias, a_log, residual):
    """w of one head's tokens, from rho; or from dt, where its parameters are given."""
    w = tl.load(rho + rows * stride, mask=rows < end, other=0.0).to(tl.float32)
    if dt_bias is not None:
        w = softplus(w + tl.load(dt_bias + head).to(tl.float32)) * tl.exp(tl.load(a_log + head).to(tl.float32))
    if residual is not None:
        g = tl.load(residual + head).to(tl.float32)
        w = (1 - g) * w + g
    return w


@triton.jit
def accumulate(
    v, b, rho, dt_bias, a_log, residual, kv_parts, k_parts, tokens, chunk,
    v_batch, v_token, v_head, v_width, b_batch, b_token, b_state, rho_batch, rho_token, rho_head,
    N: tl.constexpr, P: tl.constexpr, NP: tl.constexpr, PP: tl.constexpr, TOKENS: tl.constexpr,
    NORMALIZED: tl.constexpr, PRODUCT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One head's sum of K (w V)^T over a chunk of tokens; the first head's program sums K as well."""
    after_the_kernel_before(DEPENDENT)
    head, split, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads, splits = tl.num_programs(0), tl.num_programs(1)
    n, p, rows = tl.arange(0, NP), tl.arange(0, PP), tl.arange(0, TOKENS)
    first = split * chunk
    v = at(at(at(v, batch, v_batch), head, v_head), first, v_token)
    b = at(at(b, batch, b_batch), first, b_token)
    rho = at(at(at(rho, batch, rho_batch), head, rho_head), first, rho_token)
    end = tl.minimum(chunk, tokens - first)

    kv = tl.zeros((NP, PP), tl.float32)
    keys = tl.zeros((TOKENS, NP), tl.float32)
    for start in range(0, end, TOKENS):
        left = end - start
        key = feature_block(b, rows, n, b_token, b_state, left, N, NORMALIZED, N == NP)
        value = block(v, rows, p, v_token, v_width, left, P, P == PP)
        keys += key
        weighted = key * head_gain(rho, rows, rho_token, left, head, dt_bias, a_log, residual)[:, None]
        if PRODUCT == "half":
            # Rounding the keys would leave, of a mean much larger than what varies, an error that k mu^T cannot take
            # out; the rest of the rounding is multiplied as well. Values come in half precision already.
            coarse = rounded(weighted).to(tl.float32)
            kv = add_product(tl.trans(weighted - coarse), value, kv, PRODUCT)
            weighted = coarse
        kv = add_product(tl.trans(weighted), value, kv, PRODUCT)
        v += TOKENS * v_token
        b += TOKENS * b_token
        rho += TOKENS * rho_token

    part = batch * splits + split
    out = at(kv_parts, part, N * heads * P) + head * P + n[:, None] * (heads * P) + p[None, :]
    tl.store(out, kv, mask=(n < N)[:, None] & (p < P)[None, :])
    if head == 0:
        tl.store(at(k_parts, part, N) + n, tl.sum(keys, 0), mask=n < N)


@triton.jit
def sum_parts(base, count, columns, width):
    """The sum of `count` rows of length `width`, at the given columns."""
    total = tl.zeros((PARTS, columns.shape[0]), tl.float32)
    rows = tl.arange(0, PARTS)
    for start in range(0, count, PARTS):
        total += block(base, rows + start, columns, width, 1, count, width)
    return tl.sum(total, 0)


@triton.jit
def query_and_reduce(
    c, kv_parts, k_parts, kv, k, q_parts, tokens, chunk, splits, queries, floor,
    c_batch, c_token, c_state,
    N: tl.constexpr, NP: tl.constexpr, STATE: tl.constexpr, TOKENS: tl.constexpr, NORMALIZED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The first programs, as many as `queries` says, sum Q / row over a chunk of tokens each; the others add the parts
    of the state, a slice each."""
    after_the_kernel_before(DEPENDENT)
    program, batch = tl.program_id(0), tl.program_id(1)
    n, rows = tl.arange(0, NP), tl.arange(0, TOKENS)
    if program < queries:
        k_total = tl.zeros((NP,), tl.float32)
        if NORMALIZED:
            k_total = sum_parts(at(k_parts, batch * splits, N), splits, n, N)
            if program == 0:
                tl.store(k + batch * N + n, k_total, mask=n < N)
        first = program * chunk
        end = tl.minimum(chunk, tokens - first)
        c = at(at(c, batch, c_batch), first, c_token)
        total = tl.zeros((TOKENS, NP), tl.float32)
        for start in range(0, end, TOKENS):
            query = feature_block(c, rows, n, c_token, c_state, end - start, N, NORMALIZED, N == NP)
            if NORMALIZED:
                _, scale = normaliser(query, k_total, floor)
                query = query * scale[:, None]
            total += query
            c += TOKENS * c_token
        tl.store(at(q_parts, batch * queries + program, N) + n, tl.sum(total, 0), mask=n < N)
    else:
        elements = (program - queries) * SLICE + tl.arange(0, SLICE)
        added = sum_parts(at(kv_parts, batch * splits, STATE), splits, elements, STATE)
        tl.store(at(kv, batch, STATE) + elements, added, mask=elements < STATE)


@triton.jit
def calibrate(
    kv, k, q_parts, d, omega, s, t, v_sum, state, affine, q, mu, tokens, parts,
    N: tl.constexpr, P: tl.constexpr, NP: tl.constexpr, COLUMNS: tl.constexpr, NORMALIZED: tl.constexpr,
    PRODUCT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Some columns of one head's state as they are read out, (S - k mu^T) a, and what is added to each token: see
    `operator.py`."""
    after_the_kernel_before(DEPENDENT)
    head, batch = tl.program_id(0), tl.program_id(2)
    width = tl.num_programs(0) * P
    n, p = tl.arange(0, NP), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (n < N)[:, None] & (p < P)[None, :]
    channel = head * P + p
    q_total = sum_parts(at(q_parts, batch * parts, N), parts, n, N)
    place = at(at(kv, batch, N * width), head, P) + n[:, None] * width + p[None, :]
    sums = tl.load(place, mask=inside, other=0.0)
    mean = tl.sum(q_total[:, None] * sums, 0) / tokens
    tl.store(mu + batch * width + channel, mean, mask=p < P)
    if head + tl.program_id(1) == 0:
        tl.store(q + batch * N + n, q_total, mask=n < N)

    amplify = tl.full((COLUMNS,), 1.0, tl.float32)
    keep = tl.full((COLUMNS,), 1.0, tl.float32)
    if omega is not None:
        amplify *= 1 + tl.load(omega + head).to(tl.float32)
    if t is not None:
        amplify *= 1 + tl.load(t + p, mask=p < P, other=0.0).to(tl.float32)
    if s is not None:
        keep += tl.load(s + p, mask=p < P, other=0.0).to(tl.float32)
    skip = tl.full((COLUMNS,), 1.0, tl.float32) * tl.load(d + head).to(tl.float32)
    shift = (keep - amplify) * mean
    if v_sum is not None:
        v_mean = tl.load(v_sum + batch * width + channel, mask=p < P, other=0.0) / tokens
        shift += (keep - amplify) * skip * v_mean
        skip *= amplify
    lift = tl.zeros((COLUMNS,), tl.float32)
    if NORMALIZED:
        k_total = tl.load(k + batch * N + n, mask=n < N, other=0.0)
        sums -= k_total[:, None] * mean[None, :]
        lift = amplify * mean

    place = at(at(state, batch, N * width), head, P) + n[:, None] * width + p[None, :]
    sums *= amplify[None, :]
    tl.store(place, rounded(sums) if PRODUCT == "half" else sums, mask=inside)
    affine = affine + batch * 3 * width + channel
    tl.store(affine, lift, mask=p < P)
    tl.store(affine + width, shift, mask=p < P)
    tl.store(affine + 2 * width, skip, mask=p < P)


@triton.jit
def read_out(
    v, c, k, state, affine, out, tokens, chunk, floor,
    v_batch, v_token, v_head, v_width, c_batch, c_token, c_state,
    N: tl.constexpr, P: tl.constexpr, NP: tl.constexpr, PP: tl.constexpr, TOKENS: tl.constexpr,
    NORMALIZED: tl.constexpr, PRODUCT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One head's output for a chunk of tokens."""
    after_the_kernel_before(DEPENDENT)
    head, split, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    width = tl.num_programs(0) * P
    n, p, rows = tl.arange(0, NP), tl.arange(0, PP), tl.arange(0, TOKENS)
    first = split * chunk
    v = at(at(at(v, batch, v_batch), head, v_head), first, v_token)
    c = at(at(c, batch, c_batch), first, c_token)
    out = at(out, batch.to(tl.int64) * tokens + first, width) + head * P
    end = tl.minimum(chunk, tokens - first)

    whole = block(at(at(state, batch, N * width), head, P), n, p, width, 1, N, P)
    k_total = tl.load(k + batch * N + n, mask=n < N, other=0.0) if NORMALIZED else 0.0
    affine = affine + batch * 3 * width + head * P + p
    lift = tl.load(affine, mask=p < P, other=0.0)
    shift = tl.load(affine + width, mask=p < P, other=0.0)
    skip = tl.load(affine + 2 * width, mask=p < P, other=0.0)
    for start in range(0, end, TOKENS):
        left = end - start
        query = feature_block(c, rows, n, c_token, c_state, left, N, NORMALIZED)
        value = block(v, rows, p, v_token, v_width, left, P).to(tl.float32)
        y = add_product(query, whole, tl.zeros((TOKENS, PP), tl.float32), PRODUCT)
        if NORMALIZED:
            row, scale = normaliser(query, k_total, floor)
            y = y * scale[:, None] + (scale * row)[:, None] * lift[None, :]
        y += shift[None, :] + skip[None, :] * value
        inside = (rows < left)[:, None] & (p < P)[None, :]
        tl.store(out + rows[:, None] * width + p[None, :], y, mask=inside)
        v += TOKENS * v_token
        c += TOKENS * c_token
        out += TOKENS * width
