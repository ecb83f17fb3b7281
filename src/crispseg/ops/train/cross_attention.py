"""Multi-head attention with few tokens on one side, with gradients: pixels read from tokens, or tokens from pixels.

On CUDA, in bfloat16, both are Triton kernels that take heads as they lie in the channels and recompute the
weights for the gradients; elsewhere (and without Triton, in an exported program, or with CRISPSEG_OPS_BACKEND=torch)
it is torch's own attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.dispatch import kernels_wanted

MOST_TOKENS = 64  # on the side that has few
LARGEST_HEAD = 64  # channels


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Queries (B, L, inner), keys and values (B, S, inner); the heads share the inner width. Returns (B, L, inner)."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))  # (B, heads, L, inner / heads)
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def takes(q: Tensor, keys: int, heads: int) -> bool:
    """Whether `few_tokens_attention` is for these queries, and so many keys."""
    return (
        q.is_cuda
        and q.dtype == torch.bfloat16  # not float16, which the weights of single pixels are too small for
        and min(q.shape[1], keys) <= MOST_TOKENS
        and q.shape[2] <= LARGEST_HEAD * heads
        and q.numel() > 0
        and keys > 0
        and kernels_wanted()
    )


def few_tokens_attention(q: Tensor, kv: Tensor, heads: int) -> Tensor:
    """`attention` where `takes` says so, with keys and values side by side: kv (B, S, 2 x inner)."""
    return _read_tokens(q, kv, heads) if kv.shape[1] <= MOST_TOKENS else _read_pixels(q, kv, heads)[0]


# Registered as operators so that torch.compile takes them as they are; their bodies import Triton when first run.


@torch.library.custom_op("crispseg::read_tokens", mutates_args=(), schema="(Tensor q, Tensor kv, int heads) -> Tensor")
def _read_tokens(q: Tensor, kv: Tensor, heads: int) -> Tensor:
    from crispseg.ops.train import cross_attention_kernels as kernels

    with torch.cuda.device_of(q):
        return kernels.read_tokens(q, kv, heads)


@_read_tokens.register_fake
def _(q: Tensor, kv: Tensor, heads: int) -> Tensor:
    return q.new_empty(q.shape)


@torch.library.custom_op(
    "crispseg::read_tokens_backward",
    mutates_args=(),
    schema="(Tensor g, Tensor q, Tensor kv, int heads) -> (Tensor, Tensor)",
)
def _read_tokens_backward(g: Tensor, q: Tensor, kv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    from crispseg.ops.train import cross_attention_kernels as kernels

    with torch.cuda.device_of(q):
        return kernels.read_tokens_back(g, q, kv, heads)


@_read_tokens_backward.register_fake
def _(g: Tensor, q: Tensor, kv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), kv.new_empty(kv.shape)


@torch.library.custom_op(
    "crispseg::read_pixels", mutates_args=(), schema="(Tensor q, Tensor kv, int heads) -> (Tensor, Tensor)"
)
def _read_pixels(q: Tensor, kv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    from crispseg.ops.train import cross_attention_kernels as kernels

    with torch.cuda.device_of(q):
        return kernels.read_pixels(q, kv, heads)


@_read_pixels.register_fake
def _(q: Tensor, kv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty((*q.shape[:2], heads), dtype=torch.float32)


@torch.library.custom_op(
    "crispseg::read_pixels_backward",
    mutates_args=(),
    schema="(Tensor g, Tensor q, Tensor kv, Tensor out, Tensor sums, int heads) -> (Tensor, Tensor)",
)
def _read_pixels_backward(
    g: Tensor, q: Tensor, kv: Tensor, out: Tensor, sums: Tensor, heads: int
) -> tuple[Tensor, Tensor]:
    from crispseg.ops.train import cross_attention_kernels as kernels

    with torch.cuda.device_of(q):
        return kernels.read_pixels_back(g, q, kv, out, sums, heads)


@_read_pixels_backward.register_fake
def _(g: Tensor, q: Tensor, kv: Tensor, out: Tensor, sums: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), kv.new_empty(kv.shape)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.heads = inputs
    ctx.save_for_backward(*tensors)


def _keep_all(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.heads = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _differentiate_tokens(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return *_read_tokens_backward(g, *ctx.saved_tensors, ctx.heads), None


def _differentiate_pixels(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    return *_read_pixels_backward(g, *ctx.saved_tensors, ctx.heads), None


_read_tokens.register_autograd(_differentiate_tokens, setup_context=_keep_inputs)
_read_pixels.register_autograd(_differentiate_pixels, setup_context=_keep_all)
