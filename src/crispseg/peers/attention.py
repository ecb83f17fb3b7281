"""Attentions shared by several peers: the linear ("Taylor") attention, over space and over channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crispseg.ops.common.precision import sum_dtype, without_autocast

SUM_EPS = 1e-6  # added to each channel of the key sum
NORM_EPS = 1e-6  # the authors divide by a bare norm: a zero vector (a dead ReLU) gave them NaN


class LinearAttention(nn.Module):
    """Softmax attention with exp(q.k) replaced by 1 + q.k on unit vectors: linear in the number of pixels.

    Returns gamma * attention(x), plus x if `residual`.
    """

    def __init__(self, channels: int, residual: bool) -> None:
        super().__init__()
        self.query_conv = nn.Conv2d(channels, channels // 8, 1)
        self.key_conv = nn.Conv2d(channels, channels // 8, 1)
        self.value_conv = nn.Conv2d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.zeros(1))
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        out = self.gamma * attend_pixels(self.query_conv(x), self.key_conv(x), self.value_conv(x))
        out = out.to(x.dtype)
        return x + out if self.residual else out


class ChannelLinearAttention(nn.Module):
    """The same idea between channels, with no parameter but gamma (DC-Swin): x + gamma * attention(x)."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.gamma * attend_channels(x)).to(x.dtype)


@without_autocast
def attend_pixels(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """w_i = (sum_j v_j + q_i . sum_j k_j v_j) / (N + q_i . (sum_j k_j + 1e-6)), queries and keys as unit vectors."""
    shape, exact = value.shape, sum_dtype(value.dtype)
    query, key, value = (t.to(exact).flatten(2) for t in (query, key, value))  # (B, c, N), v: (B, C, N)
    query, key = F.normalize(query, dim=1, eps=NORM_EPS), F.normalize(key, dim=1, eps=NORM_EPS)
    key_sum = key.sum(dim=2, keepdim=True) + SUM_EPS  # (B, c, 1)
    denominator = query.shape[2] + (query * key_sum).sum(dim=1, keepdim=True)  # (B, 1, N)
    memory = value @ key.transpose(1, 2)  # (B, C, c)
    numerator = value.sum(dim=2, keepdim=True) + memory @ query  # (B, C, N)
    return (numerator / denominator).view(shape)


@without_autocast
def attend_channels(x: Tensor) -> Tensor:
    """Queries and keys are x as unit vectors over the channels, values are x; see the formula in attend_pixels.

    The constant in the denominator is the number of positions, not of channels, as in the authors' networks.
    """
    value = x.to(sum_dtype(x.dtype)).flatten(2)  # (B, C, N)
    unit = F.normalize(value, dim=1, eps=NORM_EPS)
    position_sum = unit.sum(dim=1, keepdim=True) + SUM_EPS  # (B, 1, N)
    denominator = value.shape[2] + (unit * position_sum).sum(dim=2, keepdim=True)  # (B, C, 1)
    memory = value @ unit.transpose(1, 2)  # (B, C, C)
    numerator = value.sum(dim=1, keepdim=True) + memory @ unit  # (B, C, N)
    return (numerator / denominator).view(x.shape)
