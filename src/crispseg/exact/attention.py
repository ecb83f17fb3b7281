"""Softmax attention over keys that come in bands."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from crispseg.models.omp import Attention


class SoftmaxSum:
    """The softmax-weighted mean of values, added up over bands of keys: q (B, heads, L, d).

    Each band gives its own mean and the logarithm of its total weight; both are merged in float64, so that the
    result does not depend on how many bands there were.
    """

    def __init__(self, q: Tensor) -> None:
        self.q = q / math.sqrt(q.shape[-1])
        self.mean: Tensor | None = None  # (B, heads, L, d)
        self.log_weight: Tensor | None = None  # (B, heads, L, 1)

    def add(self, k: Tensor, v: Tensor) -> None:
        """Keys and values of a band: (B, heads, keys, d)."""
        scores = self.q @ k.transpose(-1, -2)
        log_weight = scores.logsumexp(-1, keepdim=True)
        mean = (scores.sub_(log_weight).exp_() @ v).to("cpu", torch.float64)
        log_weight = log_weight.to("cpu", torch.float64)
        if self.mean is None or self.log_weight is None:
            self.mean, self.log_weight = mean, log_weight
            return
        total = torch.logaddexp(self.log_weight, log_weight)
        self.mean = self.mean * (self.log_weight - total).exp() + mean * (log_weight - total).exp()
        self.log_weight = total

    def result(self) -> Tensor:
        assert self.mean is not None
        return self.mean.to(self.q)


class StreamedAttention:
    """`omp.Attention` of few queries (B, L, dim) over a source that comes in bands."""

    def __init__(self, attention: Attention, query: Tensor) -> None:
        self.attention = attention
        self.sum = SoftmaxSum(self._split(attention.q(query)))

    def add(self, source: Tensor) -> None:
        """A band of the source, (B, rows, W, dim)."""
        source = source.flatten(1, 2)
        self.sum.add(self._split(self.attention.k(source)), self._split(self.attention.v(source)))

    def result(self) -> Tensor:
        return self.attention.out(self.sum.result().transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.attention.heads, -1)).transpose(1, 2)  # (B, L, dim) -> (B, heads, L, d)
