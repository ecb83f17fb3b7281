"""Multi-head attention with few tokens on one side, with gradients: pixels read from tokens, or tokens from pixels.

In bfloat16 both are Triton kernels that take heads as they lie in the channels and recompute the weights for the
gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.dispatch import operator

MOST_TOKENS = 64  # on the side that has few
_LARGEST_HEAD = 64  # channels


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Queries (B, L, inner), keys and values (B, S, inner); the heads share the inner width. Returns (B, L, inner)."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))  # (B, heads, L, inner / heads)
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


# Not float16, which the weights of single pixels are too small for.
@operator("cross_attention", dtypes=(torch.bfloat16,), of=1)
def cross_attention(q: Tensor, kv: Tensor, heads: int) -> Tensor:
    """`attention` with keys and values side by side: kv (B, S, 2 x inner)."""
    k, v = kv.chunk(2, dim=-1)
    return attention(q, k, v, heads)


@cross_attention.unless
def _(q: Tensor, kv: Tensor, heads: int) -> str | None:
    """Of kv only the number of tokens is asked."""
    if q.numel() == 0 or kv.shape[1] == 0:
        return "no tokens"
    if min(q.shape[1], kv.shape[1]) > MOST_TOKENS:
        return f"more than {MOST_TOKENS} tokens on either side"
    return f"heads of more than {_LARGEST_HEAD} channels" if q.shape[2] > _LARGEST_HEAD * heads else None
