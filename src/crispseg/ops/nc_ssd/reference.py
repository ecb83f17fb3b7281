"""NC-SSD with DCO, line by line as in the paper's formulas. Slow and plain: the oracle for the fast paths."""

from __future__ import annotations

import torch
from torch import Tensor

from crispseg.ops.common.precision import sum_dtype, without_autocast
from crispseg.ops.nc_ssd.spec import Gates, Rule, normaliser_floor


@without_autocast
def ncssd(v: Tensor, b: Tensor, c: Tensor, rho: Tensor, d: Tensor, gates: Gates, rule: Rule) -> Tensor:
    """See `crispseg.ops.ncssd`."""
    eps = normaliser_floor(b.dtype)
    v, b, c, rho, d = (x.to(sum_dtype(x.dtype)) for x in (v, b, c, rho, d))
    normalized = rule.fusion == "normalized"
    key = torch.nn.functional.elu(b) + 1 if normalized else b  # K_j  (B, L, N)
    query = torch.nn.functional.elu(c) + 1 if normalized else c  # Q_i
    v_gained = rho[..., None] * v  # V' = rho V  (B, L, H, P)
    skip = d[:, None] * v

    state = torch.einsum("bjn,bjhp->bhnp", key, v_gained)  # S' = sum_j K_j V'_j^T
    y = torch.einsum("bin,bhnp->bihp", query, state)  # Q_i^T S'
    if normalized:
        row = torch.einsum("bin,bn->bi", query, key.sum(1)).clamp(min=eps)  # Q_i^T sum_j K_j
        y = y / row[..., None, None]
    if rule.skip == "before":
        y = y + skip

    if gates.residual is not None:
        if rule.residual_readout == "elu":
            key, query = torch.nn.functional.elu(b) + 1, torch.nn.functional.elu(c) + 1
        residual_state = torch.einsum("bjn,bjhp->bhnp", key, v - v_gained)  # S_d = sum_j K_j dV_j^T
        r = torch.einsum("bin,bhnp->bihp", query, residual_state)
        if normalized and rule.residual_readout == "row":
            r = r / row[..., None, None]
        y = y + gates.residual[:, None] * r

    mu = y.mean(1, keepdim=True)
    if gates.omega is not None:
        y = y + gates.omega[:, None] * (y - mu)
    if gates.s is not None or gates.t is not None:
        s = 0.0 if gates.s is None else gates.s
        t = 0.0 if gates.t is None else gates.t
        y = (1 + s) * mu + (1 + t) * (y - mu)
    if rule.skip == "after":
        y = y + skip
    return y
