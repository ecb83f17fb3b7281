"""NC-SSD with DCO in plain torch, using the algebra that makes calibration free.

Three facts carry this file (symbols as in `reference.py`; g = 1e-4 + lambda):

1. Wherever the residual read-out shares the fusion's normaliser, S' + g S_d = sum_j K_j ((1 - g) rho_j + g) V_j^T:
   step 2 is a change of the value gain.
2. mean(y') = mu, so steps 3 and 4 are one affine map: out = a y + (1 + s - a) mu with a = (1 + t)(1 + omega),
   and `a` folds into the state that is read out.
3. mu = (mean_i Q_i / row_i)^T S: the mean of the outputs needs the queries' mean, not the outputs.

So the work is three sums over tokens, each a function of one part of the image that can be added up over chunks,
tiles or machines: `accumulate` (keys and values -> State), `query_sums` (queries -> QuerySums), `read_out`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from crispseg.ops.common.precision import sum_dtype, widened, without_autocast
from crispseg.ops.dispatch import FLOATS, operator
from crispseg.ops.nc_ssd.spec import Gates, Rule, normaliser_floor, positive_feature

CHUNK = 16384  # tokens worked on at a time; bounds the memory beyond inputs and outputs


class State(NamedTuple):
    """What the image's keys and values sum up to. `add_states` adds those of its parts."""

    kv: Tensor  # (B, N, H*P) sum_j K_j (w_j V_j)^T, w the value gain with step 2 folded in where it folds
    k: Tensor | None  # (B, N) sum_j K_j; normalized fusion only
    residual: Tensor | None  # (B, N, H*P) S_d, only where step 2 does not fold
    v: Tensor | None  # (B, H*P) sum_j V_j, only when the skip is calibrated too
    tokens: int


class QuerySums(NamedTuple):
    """What the image's queries sum up to; needed when a step of DCO uses the mean over tokens."""

    row: Tensor  # (B, N) sum_i Q_i / row_i (the plain sum in raw fusion)
    plain: Tensor | None  # (B, N) sum over what reads the residual, only where step 2 does not fold


class Queries(NamedTuple):
    """Of a part of the image, (B, L, N) each."""

    row: Tensor  # Q_i / row_i; Q_i in raw fusion
    plain: Tensor  # Q_i, or what reads the residual in its place


def add_states(x: State, y: State) -> State:
    return State(x.kv + y.kv, _add(x.k, y.k), _add(x.residual, y.residual), _add(x.v, y.v), x.tokens + y.tokens)


def add_query_sums(x: QuerySums, y: QuerySums) -> QuerySums:
    return QuerySums(x.row + y.row, _add(x.plain, y.plain))


@without_autocast
def accumulate(
    v: Tensor, b: Tensor, rho: Tensor, gates: Gates, rule: Rule, products: torch.dtype | None = None
) -> State:
    """The state of a part of the image: v (B, L, H, P), b (B, L, N), rho (B, L, H).

    `products` is the precision of what is multiplied; that of the sums unless told.
    """
    batch, tokens = b.shape[:2]
    wide = sum_dtype(b.dtype)
    b = b.to(products or wide)
    v, rho = v.to(b.dtype), rho.to(b.dtype)
    key = _feature(b) if rule.fusion == "normalized" else b
    gain, residual = rho, None
    if gates.residual is not None:
        g = gates.residual.to(b.dtype)
        if rule.residual_folds:
            gain = (1 - g) * rho + g
        else:
            read_by = _feature(b) if rule.residual_readout == "elu" else key
            residual = _outer_sum(read_by, ((1 - rho)[..., None] * v).reshape(batch, tokens, -1))
    return State(
        kv=_outer_sum(key, (gain[..., None] * v).reshape(batch, tokens, -1)),
        k=key.sum(1, dtype=wide) if rule.fusion == "normalized" else None,
        residual=residual,
        v=v.sum(1, dtype=wide).flatten(1) if rule.skip == "before" else None,
        tokens=tokens,
    )


@without_autocast
def query_sums(c: Tensor, state: State, rule: Rule) -> QuerySums:
    """The queries' sums of a part of the image, given the whole image's state: c (B, L, N)."""
    return sums_of(queries_of(c, state, rule), state)


@without_autocast
def read_out(v: Tensor, c: Tensor, d: Tensor, state: State, sums: QuerySums | None, gates: Gates, rule: Rule) -> Tensor:
    """The calibrated output (B, L, H, P) of a part of the image, given the whole image's state and query sums."""
    return read_queries(v, queries_of(c, state, rule), d, state, sums, gates, rule)


def sums_of(queries: Queries, state: State) -> QuerySums:
    wide = state.kv.dtype
    plain = queries.plain.sum(1, dtype=wide) if state.residual is not None else None
    return QuerySums(queries.row.sum(1, dtype=wide), plain)


def read_queries(
    v: Tensor, queries: Queries, d: Tensor, state: State, sums: QuerySums | None, gates: Gates, rule: Rule
) -> Tensor:
    batch, tokens, heads, width = v.shape
    amplify, shift = _affine(state, sums, d, gates, heads, width)
    dtype = queries.row.dtype
    kv = (state.kv if amplify is None else state.kv * amplify).to(dtype)
    out = torch.bmm(queries.row, kv) if shift is None else torch.baddbmm(shift[:, None].to(dtype), queries.row, kv)
    if state.residual is not None:
        g = _per_channel(gates.residual, heads, width)
        residual = state.residual * (g if amplify is None else g * amplify)
        out = out + torch.bmm(queries.plain, residual.to(dtype))
    skip = _per_channel(d.to(state.kv.dtype), heads, width)
    if rule.skip == "before" and amplify is not None:
        skip = skip * amplify
    return out.addcmul_(v.to(dtype).flatten(2), skip.to(dtype)).view(batch, tokens, heads, width)


def ncssd(
    v: Tensor, b: Tensor, c: Tensor, rho: Tensor, d: Tensor, gates: Gates, rule: Rule, chunk: int = CHUNK
) -> Tensor:
    """See `crispseg.ops.ncssd`."""
    # A compiler fuses the whole and must not see a loop whose length depends on the image's size.
    if torch.compiler.is_compiling() or b.shape[1] <= chunk:
        return _at_once(v, b, c, rho, d, gates, rule)
    return _by_chunks(v, b, c, rho, d, gates, rule, chunk)


@operator("ncssd", dtypes=FLOATS)
def dispatched(v: Tensor, b: Tensor, c: Tensor, rho: Tensor, d: Tensor, gates: Gates, rule: Rule) -> Tensor:
    """By the kernels of `operator.py` where they can."""
    return ncssd(v, b, c, rho, d, gates, rule)


@without_autocast
def _at_once(v: Tensor, b: Tensor, c: Tensor, rho: Tensor, d: Tensor, gates: Gates, rule: Rule) -> Tensor:
    state = accumulate(v, b, rho, gates, rule)
    queries = queries_of(c, state, rule)
    sums = sums_of(queries, state) if gates.use_mean else None
    return read_queries(v, queries, d, state, sums, gates, rule)


def _by_chunks(v: Tensor, b: Tensor, c: Tensor, rho: Tensor, d: Tensor, gates: Gates, rule: Rule, chunk: int) -> Tensor:
    """The three sums, chunk by chunk; the backward pass makes each chunk again, so only the inputs are kept."""
    chunks = list(zip(*(x.split(chunk, dim=1) for x in (v, b, c, rho)), strict=True))
    state = functools.reduce(add_states, (_not_kept(accumulate, v, b, rho, gates, rule) for v, b, _, rho in chunks))
    sums = None
    if gates.use_mean:
        sums = functools.reduce(add_query_sums, (_not_kept(query_sums, c, state, rule) for _, _, c, _ in chunks))
    read = (_not_kept(read_out, v, c, d, state, sums, gates, rule) for v, _, c, _ in chunks)
    if torch.is_grad_enabled():
        return torch.cat(list(read), dim=1)
    out = torch.empty(v.shape, dtype=state.kv.dtype, device=v.device)  # as pieces and the whole would take twice that
    for part, piece in zip(out.split(chunk, dim=1), read, strict=True):
        part.copy_(piece)
    return out


def _not_kept(function: Callable[..., Any], *given: Any) -> Any:
    """function(*given), of which autograd keeps nothing but what is given."""
    return checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False)


def _add(x: Tensor | None, y: Tensor | None) -> Tensor | None:
    return None if x is None or y is None else x + y


def _outer_sum(key: Tensor, values: Tensor) -> Tensor:
    return widened(torch.bmm(key.transpose(1, 2), values))  # (B, N, L) x (B, L, H*P)


def queries_of(c: Tensor, state: State, rule: Rule, products: torch.dtype | None = None) -> Queries:
    """`products`: as `accumulate`'s."""
    eps = normaliser_floor(c.dtype)
    c = c.to(products or sum_dtype(c.dtype))
    if state.k is None:
        return Queries(c, _feature(c) if rule.residual_readout == "elu" and state.residual is not None else c)
    query = _feature(c)
    return Queries(query / torch.bmm(query, state.k[..., None].to(query.dtype)).clamp(min=eps), query)


def _feature(x: Tensor) -> Tensor:
    """`positive_feature`, in place where no gradient is asked for."""
    return positive_feature(x) if torch.is_grad_enabled() else x.clamp(max=0).exp_().add_(x.relu())


def _affine(
    state: State, sums: QuerySums | None, d: Tensor, gates: Gates, heads: int, width: int
) -> tuple[Tensor | None, Tensor | None]:
    """Steps 3 and 4 as (a, shift): out = a y + shift, flat over (H*P); (None, None) when both are off."""
    if sums is None:
        return None, None
    total = torch.einsum("bn,bnd->bd", sums.row, state.kv)
    if state.residual is not None and sums.plain is not None:
        g = _per_channel(gates.residual, heads, width)
        total = total + g * torch.einsum("bn,bnd->bd", sums.plain, state.residual)
    if state.v is not None:
        total = total + _per_channel(d, heads, width) * state.v
    mu = total / state.tokens
    amplify = torch.ones(heads, width, dtype=mu.dtype, device=mu.device)
    if gates.omega is not None:
        amplify = amplify * (1 + gates.omega)[:, None]
    if gates.t is not None:
        amplify = amplify * (1 + gates.t)
    keep_mean = torch.ones_like(amplify) if gates.s is None else (1 + gates.s).expand(heads, width)
    return amplify.reshape(-1), (keep_mean - amplify).reshape(-1) * mu


def _per_channel(gate: Tensor | None, heads: int, width: int) -> Tensor:
    """A per-head gate, repeated over the head's channels: (H*P,)."""
    assert gate is not None
    return gate[:, None].expand(heads, width).reshape(-1)
