"""The operator's backward pass: three sweeps of kernels over the tokens, and between them algebra on sums.

Symbols as in `operator.py`; G is the output's gradient. The first sweep (`state_gradients`) sums over tokens

    dA - q dshift^T / L = sum_i (Q_i / row_i - q / L) G_i^T     dshift = sum_i G_i

(without the queries' mean, so that products round only what sets queries apart, on which da depends alone), then
(`combine`) da = sum_n (S - k mu^T) (dA - q dshift^T / L), dmu = (1 + s - a) dshift, dq = (S - k mu^T) dmu / L,
dS = a dA + q dmu^T / L; the second sweep (`query_gradients`) gives

    dQ_i = (x_i + r_i k) / row_i,  x_i = A G_i + dq,  r_i = -(Q_i^T x_i) / row_i     dk = sum_i r_i Q_i / row_i

and the third (`token_gradients`)

    dK_j = dS (w_j V_j - mu) + dk
    dV_j = w_j y_j + skip G_j,  y_j = dS^T K_j;    dw_j = V_j^T y_j, head by head

The derivatives by S and k would be taken with S itself and not with S - k mu^T; the parts that this adds to dq, dk and
dK cancel, and are left out before they can cost digits. They do not cancel for rows at the floor, which are put right:
there r_i = lift G_i + mu dmu / L.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from crispseg.ops.common.dependent_launch import launch_options
from crispseg.ops.common.hardware import padded
from crispseg.ops.nc_ssd import gradient_kernels as kernels
from crispseg.ops.nc_ssd.launch import DTYPES, Sizes, Tiling, product_of, state_dtype
from crispseg.ops.nc_ssd.spec import Gates, normaliser_floor

# In bfloat16, with the most tokens: fewer where multiprocessors would be idle. Three programs with so many registers
# share one.
_STATE_GRADIENTS, _QUERY_GRADIENTS = Tiling(32, 4, 3, registers=168), Tiling(64, 4, 3, registers=168)
_TOKEN_GRADIENTS = Tiling(64, 4, 3)
_WIDEST = 64  # columns of all heads' that a program takes at a time
_MOST_PARTS = 64  # of dk, that every block of tokens adds up for itself
_MOST_CHUNKS = 128  # that the sum over an image's tokens is split into, as `combine` adds them
_COMBINED = 16  # columns that a program of `combine` takes
_SUMMED = {"BATCHES": 16, "ROWS": 64, "COLUMNS": 16, "SOME": 2048}  # by `parameter_gradients` at a time


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


class Combined(NamedTuple):
    """What `combine` leaves, in its order; parts by its programs, of which one image has as many as `parts` says."""

    state: Tensor  # (B, N, H*P) A and, as `dsums`, dS: in the precision of the products
    lift: Tensor  # (B, H*P) a mu
    skip: Tensor  # (H*P,)
    dsums: Tensor
    dq: Tensor  # (B, parts, N)
    dlift: Tensor  # (B, parts) mu dmu / L
    dmean: Tensor  # (B, parts, N) dS mu
    dshift: Tensor  # (B, H*P), as those of the gates' factors 1 + s and a, image by image
    dkeep: Tensor
    damplify: Tensor

    @property
    def parts(self) -> int:
        return self.dq.shape[1]


def gradients(given: Problem, grad: Tensor, out: Tensor | None = None) -> list[Tensor]:
    """Of v, b, c, rho, d and of those gates that are not None. `grad` (B, L, H, P) in any precision. With `out`
    (B, L, H*P + 2N), contiguous, those of v, b and c are views of it, side by side."""
    grad = (grad if grad.dtype in DTYPES else grad.float()).flatten(2)  # (B, L, H*P), as the values below
    values = given.v.flatten(2)
    dv, db, dc = _results(given, out)
    combined = _combine(given, *_state_gradients(given, grad))
    dk = _query_gradients(given, grad, combined, dc)
    dv_mean = by_skip = None
    if given.mean_of_skip:
        dv_mean, by_skip = _through_the_mean(given, grad, values, combined)
    drho, *parts = _token_gradients(given, grad, values, combined, dk, dv_mean, dv, db)
    dd, of_gates = _parameter_gradients(given, combined, parts)
    return [dv.view(given.v.shape), db, dc, drho, dd if by_skip is None else by_skip, *of_gates]


def _results(given: Problem, out: Tensor | None) -> tuple[Tensor, ...]:
    """Where the gradients of v, as (B, L, H*P), b and c go."""
    if out is not None:
        return out.split([given.sizes.inner, given.sizes.state, given.sizes.state], dim=-1)
    batch, tokens, _, _, state = given.sizes
    sizes = (given.v, given.sizes.inner), (given.b, state), (given.c, state)
    return tuple(x.new_empty(batch, tokens, width) for x, width in sizes)


def _fitted(tiling: Tiling, rows: int, given: Problem) -> Tiling:
    """For a kernel whose programs take a block of tokens in each of `rows` (images, columns)."""
    sizes = given.sizes
    large = max(sizes.state, sizes.width) > 64  # a head's state takes more memory than that of most networks
    if large or given.product != "half":
        tiling = tiling._replace(warps=8, stages=2, registers=None)
    if given.product != "half":  # float32 blocks are twice as large
        tiling = tiling._replace(tokens=16 if large else 32)
    return tiling.without_idling(rows, sizes.tokens, given.v.device)


def _columns(given: Problem) -> int:
    return min(_WIDEST if given.product == "half" else 32, padded(given.sizes.inner))


def _launch(tiling: Tiling, given: Problem) -> dict[str, Any]:
    """What a kernel is compiled for, and how it is launched."""
    sizes = given.sizes
    return {
        "N": sizes.state, "NP": padded(sizes.state), "EVEN": sizes.tokens % tiling.tokens == 0,
        "NORMALIZED": given.normalized, "PRODUCT": given.product, **tiling.launch(given.v.device),
    }  # fmt: skip


def _state_gradients(given: Problem, grad: Tensor) -> tuple[Tensor, Tensor]:
    """dA - q dshift^T / L (B, splits, N, H*P) and dshift (B, splits, H*P)."""
    batch, tokens, _, _, state = given.sizes
    inner, columns = given.sizes.inner, _columns(given)
    rows = batch * triton.cdiv(inner, columns)
    tiling = _fitted(_STATE_GRADIENTS, rows, given)
    chunk, splits = tiling.split(rows, tokens, grad.device, _MOST_CHUNKS)
    da = torch.empty(batch, splits, state, inner, dtype=torch.float32, device=grad.device)
    dshift = da.new_empty(batch, splits, inner)
    kernels.state_gradients[(triton.cdiv(inner, columns), splits, batch)](
        grad, given.c, given.k, given.q, da, dshift, tokens, chunk, given.floor, *grad.stride(), *given.c.stride(),
        WIDTH=inner, COLUMNS=columns, **_launch(tiling, given),
    )  # fmt: skip
    return da, dshift


def _combine(given: Problem, da: Tensor, dshift: Tensor) -> Combined:
    batch, tokens, heads, width, state = given.sizes
    inner = given.sizes.inner
    parts = triton.cdiv(inner, _COMBINED)
    empty = functools.partial(torch.empty, dtype=torch.float32, device=da.device)
    kind = state_dtype(given.product)
    found = Combined(
        empty(batch, state, inner, dtype=kind), empty(batch, inner), empty(inner),
        empty(batch, state, inner, dtype=kind), empty(batch, parts, state), empty(batch, parts),
        empty(batch, parts, state), empty(batch, inner), empty(batch, inner), empty(batch, inner),
    )  # fmt: skip
    kernels.combine[(parts, batch)](
        da, dshift, given.kv, given.k, given.q, given.mu, given.d, *given.gates[1:], *found, tokens, da.shape[1],
        N=state, H=heads, P=width, NP=padded(state), COLUMNS=_COMBINED, NORMALIZED=given.normalized,
        AMPLIFIED=given.mean_of_skip, PRODUCT=given.product, num_warps=4, **launch_options(da.device),
    )  # fmt: skip
    return found


def _query_gradients(given: Problem, grad: Tensor, combined: Combined, dc: Tensor) -> Tensor:
    """dk (B, parts, N); that of c is written to dc (B, L, N)."""
    batch, tokens, _, _, state = given.sizes
    c = given.c
    tiling = _fitted(_QUERY_GRADIENTS, batch, given)
    tiles = triton.cdiv(tokens, tiling.tokens)
    dk = torch.empty(batch, tiles, state, dtype=torch.float32, device=grad.device)
    kernels.query_gradients[(tiles, batch)](
        grad, c, given.k, combined.state, combined.lift, combined.dq, combined.dlift, dc, dk, tokens, given.floor,
        *grad.stride(), *c.stride(), dc.stride(1),
        PARTS_OF_Q=combined.parts, WIDTH=given.sizes.inner, COLUMNS=_columns(given), **_launch(tiling, given),
    )  # fmt: skip
    return dk.sum(1, keepdim=True) if tiles > _MOST_PARTS and given.normalized else dk


def _token_gradients(
    given: Problem,
    grad: Tensor,
    values: Tensor,
    combined: Combined,
    dk: Tensor,
    dv_mean: Tensor | None,
    dv: Tensor,
    db: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """That of rho; and those of d and the residual gate (H, B*tiles), in parts. Those of v and b are written to dv
    (B, L, H*P) and db (B, L, N)."""
    batch, tokens, heads, width, _ = given.sizes
    tiling = _fitted(_TOKEN_GRADIENTS, batch * (1 + heads), given)
    tiles = triton.cdiv(tokens, tiling.tokens)
    drho = torch.empty_like(given.rho, memory_format=torch.contiguous_format)
    dskip = torch.empty(heads, batch * tiles, dtype=torch.float32, device=grad.device)
    dresidual = torch.empty_like(dskip)
    kernels.token_gradients[((1 + heads) * tiles, batch)](
        grad, values, given.b, given.rho, given.gates.residual, combined.skip, combined.dsums, dk, combined.dmean,
        dv_mean, dv, db, drho, dskip, dresidual, tokens, dk.shape[1],
        *(stride for x in (grad, values, given.b, given.rho) for stride in x.stride()), dv.stride(1), db.stride(1),
        H=heads, P=width, PP=padded(width), PARTS_OF_Q=combined.parts, **_launch(tiling, given),
    )  # fmt: skip
    return drho, dskip, dresidual


def _parameter_gradients(given: Problem, combined: Combined, parts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """That of d, without what reaches it through the mean; and of the gates."""
    batch, _, heads, width, _ = given.sizes
    gates = given.gates
    dd = torch.empty_like(given.d)
    found = [None if gate is None else torch.empty_like(gate) for gate in gates]
    kernels.parameter_gradients[(3 * heads + triton.cdiv(width, _SUMMED["COLUMNS"]),)](
        *parts, combined.dkeep, combined.damplify, gates.omega, gates.t, dd, *found, batch, parts[0].shape[1],
        H=heads, P=width, PP=padded(width), **_SUMMED, num_warps=4, **launch_options(dd.device),
    )  # fmt: skip
    return dd, [x for x in found if x is not None]


def _through_the_mean(given: Problem, grad: Tensor, values: Tensor, combined: Combined) -> tuple[Tensor, Tensor]:
    """Where the mean is that of the tokens with their skip: what each token's value gets from it (B, H*P), and the
    gradient of d. That of the gates' factors is put right, too."""
    heads, width, gates = given.sizes.heads, given.sizes.width, given.gates
    omega = None if gates.omega is None else gates.omega[:, None]
    amplify = (given.one_plus(gates.t) * given.one_plus(omega)).flatten()
    d = given.d.float().repeat_interleave(width)
    dmu = (given.one_plus(gates.s).flatten() - amplify) * combined.dshift
    mean = values.mean(1, dtype=torch.float32)  # (B, H*P)
    dskip = (grad.float() * values.float()).sum((0, 1))
    by_skip = combined.dshift * mean * d
    combined.dkeep.add_(by_skip)
    combined.damplify.sub_(by_skip)
    combined.damplify[0].add_(dskip * d)
    dd = (dskip * amplify + (dmu * mean).sum(0)).view(heads, width).sum(1)
    return d * dmu / given.sizes.tokens, dd.to(given.d.dtype)
