"""Sizes, tilings and launches of the forward kernels; what the training operator and the gated mixer share."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from crispseg.ops.common import rounding
from crispseg.ops.common.dependent_launch import launch_options
from crispseg.ops.common.hardware import multiprocessors, padded
from crispseg.ops.nc_ssd import kernels
from crispseg.ops.nc_ssd.spec import Gates, Rule, normaliser_floor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_STATE = 128  # N
LARGEST_HEAD = 128  # P
INTERPRETED = bool(rounding.INTERPRETED.value)
_MOST_PARTS = 128  # that a sum over tokens is split into, as somebody has to add them
_CALIBRATED = 16  # columns of the state that a program calibrates


class Sizes(NamedTuple):
    batch: int
    tokens: int
    heads: int
    width: int  # P
    state: int  # N

    @classmethod
    def of(cls, v: Tensor, b: Tensor) -> Sizes:
        """v (B, L, H, P), b (B, L, N)."""
        batch, tokens, heads, width = v.shape
        return cls(batch, tokens, heads, width, b.shape[-1])

    @property
    def inner(self) -> int:
        return self.heads * self.width

    @property
    def fixed(self) -> dict[str, int]:
        """What kernels are compiled for."""
        return {"N": self.state, "P": self.width, "NP": padded(self.state), "PP": padded(self.width)}


class Tiling(NamedTuple):
    tokens: int  # worked on at a time
    warps: int
    stages: int  # of the loop over tokens, in flight at once
    waves: int = 3  # programs for each multiprocessor
    registers: int | None = None  # of a thread, if they are limited so that more programs share a multiprocessor

    def without_idling(self, rows: int, tokens: int, device: torch.device) -> Tiling:
        """With smaller blocks of the tokens that there are in each of `rows` (batches, heads), where there would be too
        few to keep all multiprocessors busy."""
        block = self.tokens
        while block > 16 and rows * triton.cdiv(tokens, block) < 0.9 * multiprocessors(device):
            block //= 2
        return self._replace(tokens=block)

    def split(self, rows: int, tokens: int, device: torch.device, most: int = _MOST_PARTS) -> tuple[int, int]:
        """Tokens per program, a multiple of the block, and the number of programs along the tokens: all together are no
        more than run at once."""
        wanted = max(1, min(most, self.waves * multiprocessors(device) // rows))
        chunk = triton.cdiv(triton.cdiv(tokens, self.tokens), wanted) * self.tokens
        return chunk, triton.cdiv(tokens, chunk)

    def launch(self, device: torch.device) -> dict[str, Any]:
        options = {"TOKENS": self.tokens, "num_warps": self.warps, "num_stages": self.stages}
        return {**options, "maxnreg": self.registers, **launch_options(device)}


# The most tokens: fewer where multiprocessors would be idle.
_ACCUMULATE, _QUERIES, _READ_OUT = Tiling(32, 4, 3, waves=4), Tiling(32, 4, 2, waves=4), Tiling(32, 4, 3, waves=4)


class States(NamedTuple):
    """The whole image's sums, and what is read out of them: see `operator.py`."""

    kv: Tensor  # (B, N, H*P) S
    k: Tensor  # (B, N); empty in raw fusion
    q: Tensor  # (B, N) sum_i Q_i / row_i
    mu: Tensor  # (B, H*P) the fused tokens' mean, without the skip
    read: Tensor  # (B, N, H*P) (S - k mu^T) a, in the precision of the products
    affine: Tensor  # (B, 3, H*P) a mu, (1 + s - a) mean, skip


def takes(v: Tensor, b: Tensor, c: Tensor, rho: Tensor, parameters: Iterable[Tensor | None], rule: Rule) -> bool:
    """Whether the kernels can work on these tensors: v (B, L, H, P), b and c (B, L, N), rho (B, L, H)."""
    tensors = (v, b, c, rho)
    return (
        rule.residual_folds
        and all(x.dtype in DTYPES and (x.is_cuda or INTERPRETED) for x in tensors)
        and all(x.dtype in DTYPES for x in parameters if x is not None)
        and all(size > 0 for x in tensors for size in x.shape)
        and b.shape[-1] <= LARGEST_STATE
        and v.shape[-1] <= LARGEST_HEAD
        and v.shape[0] < 2**16  # the number of programs along a launch's second axis
    )


def product_of(*tensors: Tensor) -> str:
    """What matrix products round to, by the tokens: bfloat16; TF32, which holds a float16 and the range of float32, so
    that nothing overflows; or three TF32 products, which are close to one of float32.

    Not "bf16": a string that names one of Triton's types comes back from its description of a kernel as that type.
    """
    dtypes = {x.dtype for x in tensors}
    if torch.bfloat16 in dtypes:
        return "half"
    return "tf32" if torch.float16 in dtypes else "tf32x3"


def state_dtype(product: str) -> torch.dtype:
    return torch.bfloat16 if product == "half" else torch.float32


def empty_sums(like: Tensor, batch: int, state: int, inner: int, normalized: bool) -> tuple[Tensor, ...]:
    """Room for kv, k, q and mu of `States`."""
    shapes = (batch, state, inner), (batch, state if normalized else 0), (batch, state), (batch, inner)
    return tuple(like.new_empty(shape, dtype=torch.float32) for shape in shapes)


def sum_states(
    v: Tensor,
    b: Tensor,
    c: Tensor,
    rho: Tensor,
    d: Tensor,
    gates: Gates,
    rule: Rule,
    dt: tuple[Tensor, Tensor] | None = None,
) -> States:
    """The three kernels before the read-out. v (B, L, H, P); with `dt` = (bias, log A), rho is dt before softplus."""
    sizes = Sizes.of(v, b)
    batch, tokens, heads, _, state = sizes
    normalized, product = rule.fusion == "normalized", product_of(v, b, c)
    use_queries = normalized or gates.use_mean
    empty = functools.partial(torch.empty, dtype=torch.float32, device=v.device)

    tiling = _ACCUMULATE.without_idling(batch * heads, tokens, v.device)
    chunk, splits = tiling.split(batch * heads, tokens, v.device)
    kv_parts, k_parts = empty(batch, splits, state, sizes.inner), empty(batch, splits, state)
    kernels.accumulate[(heads, splits, batch)](
        v, b, rho, *(dt or (None, None)), gates.residual, kv_parts, k_parts, tokens, chunk,
        *v.stride(), *b.stride(), *rho.stride(),
        **sizes.fixed, NORMALIZED=normalized, PRODUCT=product, **tiling.launch(v.device),
    )  # fmt: skip

    tiling = _QUERIES.without_idling(batch, tokens, v.device)
    chunk, parts = tiling.split(batch, tokens, v.device)
    parts = parts if use_queries else 0
    state_size = state * sizes.inner
    slices = triton.cdiv(state_size, kernels.SLICE.value)
    kv, k, q, mu = empty_sums(v, batch, state, sizes.inner, normalized)
    q_parts = empty(batch, parts, state)
    kernels.query_and_reduce[(parts + slices, batch)](
        c, kv_parts, k_parts, kv, k, q_parts, tokens, chunk, splits, parts, normaliser_floor(c.dtype), *c.stride(),
        N=state, NP=padded(state), STATE=state_size, NORMALIZED=normalized, **tiling.launch(v.device),
    )  # fmt: skip

    v_sum = v.sum(1, dtype=torch.float32) if rule.skip == "before" and gates.use_mean else None
    affine = empty(batch, 3, sizes.inner)
    read = torch.empty_like(kv, dtype=state_dtype(product))
    kernels.calibrate[(heads, triton.cdiv(sizes.width, _CALIBRATED), batch)](
        kv, k, q_parts, d, gates.omega, gates.s, gates.t, v_sum, read, affine, q, mu, tokens, parts,
        N=state, P=sizes.width, NP=padded(state), COLUMNS=_CALIBRATED, NORMALIZED=normalized, PRODUCT=product,
        num_warps=4, **launch_options(v.device),
    )  # fmt: skip
    return States(kv, k, q, mu, read, affine)


def read_out(v: Tensor, b: Tensor, c: Tensor, states: States, normalized: bool) -> Tensor:
    """The kernel after them: the output (B, L, H, P) in float32."""
    sizes = Sizes.of(v, b)
    rows = sizes.batch * sizes.heads
    tiling = _READ_OUT.without_idling(rows, sizes.tokens, v.device)
    chunk, splits = tiling.split(rows, sizes.tokens, v.device)
    out = torch.empty(v.shape, dtype=torch.float32, device=v.device)
    kernels.read_out[(sizes.heads, splits, sizes.batch)](
        v, c, states.k, states.read, states.affine, out, sizes.tokens, chunk, normaliser_floor(c.dtype),
        *v.stride(), *c.stride(),
        **sizes.fixed, NORMALIZED=normalized, PRODUCT=product_of(v, b, c), **tiling.launch(v.device),
    )  # fmt: skip
    return out
