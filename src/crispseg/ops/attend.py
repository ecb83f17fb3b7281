"""Attention between few tokens and many pixels, its projections folded away (see fused/head.py). Inference only.

Every function is its formula in plain torch; on CUDA a Triton kernel takes its place.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.choice import kernels_wanted
from crispseg.ops.spec import widened

MOST_CHANNELS = 256  # of a pixel, which one program of a kernel holds
_MOST_TOKENS = 64


def kernels_apply(*tensors: Tensor) -> bool:
    """Whether the kernels are for these tensors: on CUDA, in half precision, and no gradient is asked for.

    In float32 most of the work is products that tensor cores do not help with, and torch's own are as fast.
    """
    return (
        all(x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) for x in tensors)
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors))
        and kernels_wanted()
    )


def add_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm of x + y over the last axis."""
    if kernels_apply(x, y) and x.shape[-1] <= 4096:
        from crispseg.ops import attend_kernels

        return attend_kernels.add_norm(x, y, weight, bias, eps)
    return functional.layer_norm(x + y, weight.shape, weight, bias, eps)


def attend_few(qkv: Tensor, heads: int) -> Tensor:
    """Tokens attend each other: queries, keys and values side by side (B, T, 3 D) -> (B, T, D)."""
    if kernels_apply(qkv) and qkv.shape[1] <= _MOST_TOKENS and qkv.shape[2] <= 3 * 128 * heads:
        from crispseg.ops import attend_kernels

        return attend_kernels.attend_few(qkv, heads)
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # (B, heads, T, D / heads) each
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def tokens_attend_pixels(queries: Tensor, pixels: Tensor) -> Tensor:
    """Means of the pixels (B, L, D), weighted by the softmax of their products with each query (B, T, heads, D)."""
    if kernels_apply(queries, pixels) and pixels.shape[2] <= MOST_CHANNELS:
        from crispseg.ops import attend_kernels

        return attend_kernels.tokens_attend_pixels(queries, pixels)
    scores = queries.flatten(1, 2) @ pixels.transpose(1, 2)  # (B, T * heads, L)
    return (widened(scores).softmax(-1).to(pixels.dtype) @ pixels).view(queries.shape)


def pixels_attend_tokens(
    pixels: Tensor,
    keys: Tensor,
    added: Tensor,
    values: Tensor,
    bias: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
) -> Tensor:
    """LayerNorm(x + bias + sum over heads and tokens of a softmax over tokens times values), for each pixel x.

    pixels (B, L, D); keys and values (B, T, heads, D); added to the scores (B, T, heads). Scores are x . keys + added.
    """
    tensors = (pixels, keys, added, values)
    if kernels_apply(*tensors) and keys.shape[1] <= _MOST_TOKENS and pixels.shape[2] <= MOST_CHANNELS:
        from crispseg.ops import attend_kernels

        return attend_kernels.pixels_attend_tokens(*tensors, bias, norm_weight, norm_bias, eps)
    # Pixels come last, so that each step of the softmax over tokens runs along them. It is written out because
    # onnxruntime would turn the scores round to have the tokens last.
    scores = torch.baddbmm(added.flatten(1)[..., None], keys.flatten(1, 2), pixels.transpose(1, 2))  # (B, T * heads, L)
    scores = widened(scores).unflatten(1, added.shape[1:])
    weights = (scores - scores.amax(1, keepdim=True)).exp()
    weights = (weights / weights.sum(1, keepdim=True)).flatten(1, 2).to(pixels.dtype)
    result = (pixels + bias).baddbmm_(weights.transpose(1, 2), values.flatten(1, 2))
    return functional.layer_norm(result, norm_weight.shape, norm_weight, norm_bias, eps)
