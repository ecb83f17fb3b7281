"""The operator's backward pass: two sweeps of kernels over the tokens, and between them algebra on sums.

Symbols as in `triton.py`; G is the output's gradient. The first sweep sums over tokens

    dA = sum_i (Q_i / row_i) G_i^T     dshift = sum_i G_i     M = sum_i Q_i Q_i^T / row_i^2
    dk = -sum_i Q_i (Q_i^T A G_i) / row_i^2

then dmu = (1 + s - a) dshift, dq = (S - k mu^T) dmu / L, dS = a dA + q dmu^T / L, dk -= M dq, and the second gives

    dQ_i = (x_i - k (Q_i^T x_i) / row_i) / row_i,  x_i = A G_i + dq
    dK_j = dS (w_j V_j - mu) + dk
    dV_j = w_j y_j + skip G_j,  y_j = dS^T K_j;    dw_j = V_j^T y_j, head by head

The derivatives by S and k would be taken with S itself and not with S - k mu^T; the parts that this adds to dq, dk and
dK cancel, and are left out before they can cost digits. They do not cancel for rows at the floor, which are put right.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from crispseg.ops.kernels import ncssd_gradients as kernels
from crispseg.ops.kernels.ncssd_launch import Sizes, choose, launch, padded, product_of, split, state_dtype
from crispseg.ops.spec import Gates, normaliser_floor


class Problem(NamedTuple):
    """What the forward pass was given, and the sums it left."""

    v: Tensor
    b: Tensor
    c: Tensor
    rho: Tensor
    d: Tensor
    gates: Gates
    normalized: bool
    mean_of_skip: bool  # whether the mean that calibration uses is that of the fused tokens with their skip
    kv: Tensor
    k: Tensor
    q: Tensor
    mu: Tensor

    @property
    def sizes(self) -> Sizes:
        return Sizes.of(self.v, self.b)

    @property
    def product(self) -> str:
        return product_of(self.v, self.b, self.c)

    @property
    def floor(self) -> float:
        return normaliser_floor(self.c.dtype)

    def one_plus(self, gate: Tensor | None) -> Tensor:
        """1 + a gate (P,) or (H, 1), as (H, P)."""
        ones = torch.ones(self.sizes.heads, self.sizes.width, dtype=torch.float32, device=self.v.device)
        return ones if gate is None else ones + gate.float()


def gradients(given: Problem, grad: Tensor) -> list[Tensor]:
    """Of v, b, c, rho, d and of those gates that are not None."""
    sizes, gates, tokens = given.sizes, given.gates, given.sizes.tokens
    omega = None if gates.omega is None else gates.omega[:, None]
    amplify = given.one_plus(gates.t) * given.one_plus(omega)  # a (H, P)
    a, keep = amplify.flatten(), given.one_plus(gates.s).flatten()
    d = given.d.float()[:, None]
    skip = d * amplify if given.mean_of_skip else d.expand(sizes.heads, sizes.width).contiguous()

    centred = given.kv - given.k[:, :, None] * given.mu[:, None] if given.normalized else given.kv
    read, lift = (centred * a).to(state_dtype(given.product)), given.mu * a
    da, dshift, dk = _state_gradients(given, grad, read, lift)
    dmu = (keep - a) * dshift
    dq, dlift = (centred * dmu[:, None]).sum(2) / tokens, (given.mu * dmu).sum(1) / tokens
    short = _rows_at_floor(given)[:, None]
    if given.normalized and gates.use_mean:
        moments = _moments(given)
        dk = dk - (moments * dq[:, None]).sum(2)
        left = given.q - (moments * given.k[:, None]).sum(2)
        dk = dk + torch.where(short, dlift[:, None] * left, 0.0)
    dsums = da * a + given.q[:, :, None] * (dmu / tokens)[:, None]
    dv_mean = skip_mean = None
    if given.mean_of_skip:
        dv_mean = (d * dmu.view(-1, *amplify.shape)).flatten(1) / tokens
        skip_mean = given.v.sum(1, dtype=torch.float32) / tokens  # (B, H, P)
    of_tokens, dskip, dresidual = _token_gradients(
        given, grad, (skip, given.k, given.mu, read, lift, dsums.to(read.dtype), dk, dq, dlift, dv_mean)
    )

    dkeep = dshift * given.mu
    damplify = (da * centred).sum(1)  # of y - mu; that of -a mean is left, where mean is not mu alone
    if given.normalized:
        damplify = damplify + given.mu * torch.where(short, (da * given.k[:, :, None]).sum(1) - dshift, 0.0)
    else:
        damplify = damplify - dkeep
    dkeep, damplify = (x.sum(0).view_as(amplify) for x in (dkeep, damplify))
    dd = dskip
    if skip_mean is not None:
        by_skip = (dshift.view_as(skip_mean) * skip_mean).sum(0) * d  # (H, P)
        dkeep, damplify = dkeep + by_skip, damplify - by_skip + dskip * d
        dd = dskip * amplify + (dmu.view_as(skip_mean) * skip_mean).sum(0)
    found = (
        dresidual,
        (damplify * given.one_plus(gates.t)).sum(1),
        dkeep.sum(0),
        (damplify * given.one_plus(omega)).sum(0),
    )
    of_gates = [x.to(gate.dtype) for x, gate in zip(found, gates, strict=True) if gate is not None]
    return [*of_tokens, dd.sum(1).to(given.d.dtype), *of_gates]


def _rows_at_floor(given: Problem) -> Tensor:
    """Whether an image has some (B,): then q^T k, the sum of Q_i k / row_i, is less than the number of tokens."""
    if not given.normalized:
        return torch.zeros(given.sizes.batch, dtype=torch.bool, device=given.v.device)
    return (given.q * given.k).sum(1) < (1 - 1e-5) * given.sizes.tokens


def _state_gradients(given: Problem, grad: Tensor, read: Tensor, lift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dA (B, N, H*P), dshift (B, H*P) and dk (B, N) before M dq."""
    sizes, c = given.sizes, given.c
    batch, tokens, heads, _, state = sizes
    tiling = choose("state_gradients", batch * heads, tokens, grad.device)
    chunk, splits = split(tokens, batch * heads, tiling, grad.device)
    da = torch.empty(batch, splits, state, sizes.inner, dtype=torch.float32, device=grad.device)
    dshift = da.new_empty(batch, splits, sizes.inner)
    dk = da.new_empty(batch, splits, heads, state) if given.normalized else da.new_zeros(batch, 1, 1, state)
    kernels.state_gradients[(heads, splits, batch)](
        grad, c, given.k, read, lift, da, dshift, dk, tokens, chunk, given.floor, *grad.stride(), *c.stride(),
        **sizes.fixed, TOKENS=tiling.tokens, NORMALIZED=given.normalized, PRODUCT=given.product,
        **launch(tiling, grad.device),
    )  # fmt: skip
    return da.sum(1), dshift.sum(1), dk.sum((1, 2))


def _moments(given: Problem) -> Tensor:
    """M (B, N, N)."""
    batch, tokens, _, _, state = given.sizes
    tiling = choose("query_moments", batch, tokens, given.c.device)
    chunk, splits = split(tokens, batch, tiling, given.c.device)
    parts = given.k.new_empty(batch, splits, state, state)
    kernels.query_moments[(splits, batch)](
        given.c, given.k, parts, tokens, chunk, given.floor, *given.c.stride(),
        N=state, NP=padded(state), TOKENS=tiling.tokens, PRODUCT=given.product, **launch(tiling, given.c.device),
    )  # fmt: skip
    return parts.sum(1)


def _token_gradients(
    given: Problem, grad: Tensor, shared: tuple[Tensor | None, ...]
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Those of v, b, c and rho, and the sums over all tokens of the skip's (H, P) and the residual gate's (H,)."""
    batch, tokens, heads, width, _ = given.sizes
    tiling = choose("token_gradients", batch, tokens, grad.device)
    if given.product != "bf16":  # float32 blocks are twice as large
        tiling = tiling._replace(tokens=min(tiling.tokens, 32))
    tiles = triton.cdiv(tokens, tiling.tokens)
    inputs = (grad, given.v, given.b, given.c, given.rho)
    results = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs[1:]]
    dskip = torch.empty(batch, tiles, heads, width, dtype=torch.float32, device=grad.device)
    dresidual = dskip.new_empty(batch, tiles, heads)
    kernels.token_gradients[(tiles, batch)](
        *inputs, given.gates.residual, *shared, *results, dskip, dresidual, tokens, given.floor,
        *(stride for x in inputs for stride in x.stride()),
        **given.sizes.fixed, H=heads, TOKENS=tiling.tokens, NORMALIZED=given.normalized, PRODUCT=given.product,
        **launch(tiling, grad.device),
    )  # fmt: skip
    return results, dskip.sum((0, 1)), dresidual.sum((0, 1))
