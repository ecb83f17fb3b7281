"""A block's mixer on a CPU: NC-SSD with DCO between oneDNN's products, maps (B, H, W, C)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops import State, accumulate
from crispseg.ops.cpu import onednn
from crispseg.ops.infer.gated_mixer import Mixing
from crispseg.ops.nc_ssd.formula import queries_of, read_queries, sums_of
from crispseg.ops.nc_ssd.spec import Gates, Rule

if TYPE_CHECKING:
    from crispseg.models.vssd import Selection


class OneDNNMixer(NamedTuple):
    project: onednn.Linear  # to xBC
    gains: onednn.Linear  # to dt, but for its bias
    gate: onednn.Linear  # to z
    out: onednn.Linear
    convolution: onednn.Convolution  # ends in SiLU
    least: Tensor  # (H,), likewise `rate`: the gain of a token is least + softplus(dt) rate
    rate: Tensor
    mixing: Mixing  # without the residual gate, where it is in the gain
    selection: Selection | None

    def add_to(self, residual: Tensor, normed: Tensor) -> Tensor:
        """The residual with the mixer's result added. What is multiplied has the precision of `normed`; sums over
        tokens and gains have float32."""
        v, b, c, rho = self._tokens(normed)
        _, _, d, gates, rule, norm = self.mixing
        state = _by_halves(v, b, rho, gates, rule)
        queries = queries_of(c, state, rule, products=c.dtype)
        sums = sums_of(queries, state) if gates.use_mean else None
        y = read_queries(v, queries, d, state, sums, gates, rule)
        y = norm(y.view(*normed.shape[:-1], -1)).mul_(_on_rows(self.gate, normed))
        return self.out.added_to(rows(residual), rows(y)).view_as(residual)

    def _tokens(self, normed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """V (B, L, H, P), B and C (B, L, N), rho (B, L, H)."""
        v, b, c = self.mixing.tokens(self.convolution(_on_rows(self.project, normed)).flatten(1, 2))
        if self.selection is not None:
            b, c = self.selection(b, c)
        dt = _on_rows(self.gains, normed).flatten(1, 2) + self.mixing.dt_bias
        rho = torch.addcmul(self.least, functional.softplus(dt), self.rate)
        return v, b, c, rho


def rows(x: Tensor) -> Tensor:
    """A map (B, H, W, C) as (n, C)."""
    return x.reshape(-1, x.shape[-1])


def _on_rows(product: onednn.Linear, x: Tensor) -> Tensor:
    """Of a map."""
    return product(rows(x)).view(*x.shape[:-1], -1)


def _by_halves(v: Tensor, b: Tensor, rho: Tensor, gates: Gates, rule: Rule) -> State:
    """`accumulate`, with halves of the tokens as images of their own: torch shares one long sum badly among threads."""
    batch, tokens = b.shape[:2]
    parts = math.gcd(tokens, 2)
    halves = accumulate(*(x.reshape(parts * batch, -1, *x.shape[2:]) for x in (v, b, rho)), gates, rule, b.dtype)
    sums: list[Any] = [None if x is None else x.unflatten(0, (batch, parts)).sum(1) for x in halves[:-1]]
    return State._make([*sums, tokens])
