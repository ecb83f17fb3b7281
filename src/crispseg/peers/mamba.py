"""Mamba-1 (Gu and Dao, 2023) in plain torch: no compiled extension, any device, differentiable."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from crispseg.ops.common.precision import sum_dtype, without_autocast

CHUNK = 32  # tokens whose states are held at once


class Mamba(nn.Module):
    """(B, L, d_model) -> (B, L, d_model), causal along L. Names are mamba-ssm's, so that its weights load."""

    def __init__(self, d_model: int, d_state: int = 16, d_conv: int = 4, expand: int = 2) -> None:
        super().__init__()
        inner = expand * d_model
        self.dt_rank, self.d_state = math.ceil(d_model / 16), d_state
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, d_conv, groups=inner, padding=d_conv - 1)
        self.x_proj = nn.Linear(inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, inner)
        self.A_log = nn.Parameter(torch.arange(1, d_state + 1).float().log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, d_model, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x, z = self.in_proj(tokens).chunk(2, dim=-1)
        x = self.conv1d(x.transpose(1, 2))[..., :length].transpose(1, 2)  # cut what looks ahead
        x = F.silu(x)
        dt, B, C = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        y = selective_scan(x, self.dt_proj(dt), self.A_log, B, C)
        y = y + self.D * x
        return self.out_proj(y.to(z.dtype) * F.silu(z))


@without_autocast
def selective_scan(x: Tensor, dt: Tensor, A_log: Tensor, B: Tensor, C: Tensor, chunk: int = CHUNK) -> Tensor:
    """h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t; y_t = C_t . h_t, with delta = softplus(dt) and A = -exp(A_log).

    x, dt: (b, L, d); A_log: (d, n); B, C: (b, L, n); y: (b, L, d), at least float32. The states, (b, L, d, n), exist
    for one chunk of tokens at a time, in the backward pass too: each chunk is computed again from the state before it.
    """
    x, dt, A_log, B, C = (t.to(sum_dtype(t.dtype)) for t in (x, dt, A_log, B, C))
    tokens = (x, F.softplus(dt), B, C)
    A, state = -A_log.exp(), x.new_zeros(x.shape[0], *A_log.shape)
    outputs = []
    for part in zip(*(t.split(chunk, dim=1) for t in tokens), strict=True):
        if torch.is_grad_enabled():
            y, state = checkpoint(_scan_chunk, state, A, *part, use_reentrant=False, preserve_rng_state=False)
        else:
            y, state = _scan_chunk(state, A, *part)
        outputs.append(y)
    return torch.cat(outputs, dim=1)


def _scan_chunk(state: Tensor, A: Tensor, x: Tensor, delta: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    decay = torch.exp(delta[..., None] * A)  # (b, l, d, n), in (0, 1]
    update = (delta * x)[..., None] * B[:, :, None, :]
    decay, update = _prefix_scan(decay, update)
    states = decay * state[:, None] + update
    last = states[:, -1].clone()  # a view would keep the whole chunk's states alive
    return (states @ C[..., None])[..., 0], last  # (b, l, d), (b, d, n)


def _prefix_scan(decay: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
    """For each t, the step h -> decay h + update of tokens 0..t in one, by doubling: after round k it spans 2^k tokens.

    Only products of decays, all at most 1, are formed: nothing overflows, however strongly the state forgets.
    """
    span, length = 1, decay.shape[1]
    while span < length:
        head, tail = decay[:, :span], decay[:, span:]
        update = torch.cat([update[:, :span], update[:, span:] + tail * update[:, :-span]], dim=1)
        decay = torch.cat([head, tail * decay[:, :-span]], dim=1)
        span *= 2
    return decay, update
