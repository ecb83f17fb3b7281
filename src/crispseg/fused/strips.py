"""Work on maps (B, H, W, C) strip by strip, for CPUs: what lies between two steps is small enough for the cache.

A strip is a few rows of pixels. A 3x3 convolution needs a row more on either side, which is computed twice.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops import State, accumulate, add_query_sums, add_states
from crispseg.ops.cpu import onednn
from crispseg.ops.infer.token_attention import Norm
from crispseg.ops.nc_ssd.formula import queries_of, read_queries, sums_of
from crispseg.ops.nc_ssd.spec import Gates, Rule

if TYPE_CHECKING:
    from crispseg.models.vssd import Selection

NUMBERS = 2**21  # of a strip, wherever it has most: 8 MB
_LEAST = 8  # rows, of which two more are computed

Step = Callable[[Tensor], Tensor]


def strips(x: Tensor, channels: int) -> list[slice]:
    """The rows of each strip of x, which somewhere has this many channels; an even number but in the last."""
    height = x.shape[1]
    rows = max(_LEAST, NUMBERS // (x.shape[0] * x.shape[2] * channels) // 2 * 2)
    return [slice(start, min(start + rows, height)) for start in range(0, height, rows)]


def on_rows(step: Step, x: Tensor) -> Tensor:
    """A step that takes rows (n, C), on a map."""
    return step(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


def convolved(before: Step, convolution: onednn.Convolution, x: Tensor, rows: slice) -> Tensor:
    """These rows of x, as convolved after `before`: a 3x3 convolution padded by one on all sides."""
    above, below = int(rows.start > 0), int(rows.stop < x.shape[1])
    y = convolution(before(x[:, rows.start - above : rows.stop + below]))
    return y[:, above : y.shape[1] - below]


def halved(before: Step, convolution: onednn.Convolution, after: Step, x: Tensor, channels: int) -> Tensor:
    """after(conv(before(x))) of a 3x3 convolution with stride 2; `channels` is the most that there are on the way."""
    across = dataclasses.replace(convolution, padding=(0, convolution.padding[1]))
    parts = []
    for rows in strips(x, channels):
        if rows.start == 0:
            parts.append(after(convolution(before(x[:, rows]))))
            continue
        y = before(x[:, rows.start - 1 : rows.stop])
        if rows.stop % 2:  # the map's last row is one that is kept: below it there are zeros
            y = functional.pad(y, (0, 0, 0, 0, 0, 1))
        parts.append(after(across(y)))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class Mixer(NamedTuple):
    """A block's mixer in strips: the pieces of NC-SSD with DCO are sums over tokens, which add up over strips."""

    project: onednn.Linear  # to xBC
    gains: onednn.Linear  # to dt
    gate: onednn.Linear  # to z
    out: onednn.Linear
    convolution: onednn.Convolution
    least: Tensor  # (H,), likewise `rate`: the gain of a token is least + softplus(dt) rate
    rate: Tensor
    d: Tensor
    gates: Gates
    rule: Rule
    norm: Norm
    selection: Selection | None

    def add_to(self, residual: Tensor, normed: Tensor) -> Tensor:
        """The residual with the mixer's result added, in place."""
        inner, mixed = self.norm.weight.shape[0], self.convolution.groups
        spans = strips(normed, mixed)
        tokens = [self._tokens(normed, rows) for rows in spans]
        v, b, c, rho = zip(*tokens, strict=True)
        state = functools.reduce(
            add_states,
            (_state(*part, self.gates, self.rule) for part in zip(v, b, rho, strict=True)),
        )
        queries = [queries_of(part, state, self.rule) for part in c]
        sums = None
        if self.gates.use_mean:
            sums = functools.reduce(add_query_sums, (sums_of(part, state) for part in queries))
        for rows, values, query in zip(spans, v, queries, strict=True):
            y = read_queries(values, query, self.d, state, sums, self.gates, self.rule)
            z = self.gate(normed[:, rows].reshape(-1, normed.shape[-1]))
            part = residual[:, rows]
            part.add_(self.out(self.norm(y.view(-1, inner)).mul_(z)).view_as(part))
        return residual

    def _tokens(self, normed: Tensor, rows: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """V (B, L, H, P), B and C (B, L, N), rho (B, L, H) of a strip."""
        inner, heads = self.norm.weight.shape[0], self.d.shape[0]
        xbc = convolved(functools.partial(on_rows, self.project), self.convolution, normed, rows)
        xbc = functional.silu(xbc, inplace=True).flatten(1, 2)
        v, b, c = xbc.tensor_split((inner, (inner + xbc.shape[-1]) // 2), dim=-1)
        if self.selection is not None:
            b, c = self.selection(b, c)
        dt = on_rows(self.gains, normed[:, rows]).flatten(1, 2)
        rho = torch.addcmul(self.least, functional.softplus(dt), self.rate)
        return v.unflatten(-1, (heads, -1)), b, c, rho


def _state(v: Tensor, b: Tensor, rho: Tensor, gates: Gates, rule: Rule) -> State:
    """`accumulate`, with halves of the tokens as images of their own: torch shares one long sum badly among threads."""
    batch, tokens = b.shape[:2]
    parts = math.gcd(tokens, 2)
    halves = accumulate(*(x.reshape(parts * batch, -1, *x.shape[2:]) for x in (v, b, rho)), gates, rule)
    sums: list[Any] = [None if x is None else x.unflatten(0, (batch, parts)).sum(1) for x in halves[:-1]]
    return State._make([*sums, tokens])
