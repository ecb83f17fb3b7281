# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""What the operator's backward pass does with sums between its sweeps and after them, as Triton kernels; formulas in
`backward.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from crispseg.ops.common.dependent_launch import after_the_kernel_before
from crispseg.ops.common.rounding import rounded
from crispseg.ops.nc_ssd.gradient_sweeps import state_block, sum_of
from crispseg.ops.nc_ssd.kernels import at, block


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
    NORMALIZED: tl.constexpr, AMPLIFIED: tl.constexpr, PRODUCT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Some columns of what the sweeps after this one read, and of what the gates get from one image. AMPLIFIED: the
    skip, as well."""
    after_the_kernel_before(EARLY)
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
        apart += state_block(at(dstate_parts, part, N * WIDTH), n, columns, WIDTH, N, WIDTH, ALL)
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
    COLUMNS: tl.constexpr, SOME: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The first programs find a number each: what a head's skip gets, its residual gate, its omega; the others some
    columns of what s and t get, where images and heads are ROWS."""
    after_the_kernel_before(EARLY)
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
