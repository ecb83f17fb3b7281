"""Attention between few tokens and many pixels, its projections folded away (see fused/head.py). Inference only.

Every function is its formula in plain torch; on CUDA a Triton kernel takes its place.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.common.precision import widened
from crispseg.ops.dispatch import kernels_apply

MOST_CHANNELS = 256  # of a pixel, which one program of a kernel holds
MOST_TOKENS = 64


def read_pixels(queries: Tensor, pixels: Tensor, projection: Tensor) -> Tensor:
    """Tokens attend pixels: means of the pixels (B, L, D), weighted by the softmax of their products with each query
    (B, T, heads, D), each times its head's projection (heads, w, D). Returns (B, T, heads x w)."""
    if kernels_apply(queries, pixels, projection) and pixels.shape[2] <= MOST_CHANNELS:
        from crispseg.ops.infer import pixel_attention_kernels as kernels

        return kernels.read_pixels(queries, pixels, projection)
    scores = queries.flatten(1, 2) @ pixels.transpose(1, 2)  # (B, T * heads, L)
    means = (widened(scores).softmax(-1).to(pixels.dtype) @ pixels).view(queries.shape)
    return torch.einsum("bthd,hwd->bthw", means, projection).flatten(2)


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
    if kernels_apply(*tensors) and keys.shape[1] <= MOST_TOKENS and pixels.shape[2] <= MOST_CHANNELS:
        from crispseg.ops.infer import pixel_attention_kernels as kernels

        return kernels.pixels_attend_tokens(*tensors, bias, norm_weight, norm_bias, eps)
    # Pixels come last, so that each step of the softmax over tokens runs along them. It is written out because
    # onnxruntime would turn the scores round to have the tokens last.
    scores = torch.baddbmm(added.flatten(1)[..., None], keys.flatten(1, 2), pixels.transpose(1, 2))  # (B, T * heads, L)
    scores = widened(scores).unflatten(1, added.shape[1:])
    weights = (scores - scores.amax(1, keepdim=True)).exp()
    weights = (weights / weights.sum(1, keepdim=True)).flatten(1, 2).to(pixels.dtype)
    result = (pixels + bias).baddbmm_(weights.transpose(1, 2), values.flatten(1, 2))
    return functional.layer_norm(result, norm_weight.shape, norm_weight, norm_bias, eps)
