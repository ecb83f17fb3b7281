"""Attention between few tokens and many pixels, its projections folded away (see fused/head.py). Inference only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from crispseg.ops.common.norm import Norm
from crispseg.ops.common.precision import widened
from crispseg.ops.dispatch import A100, operator, too_many

MOST_CHANNELS = 256  # of a pixel, which one program of a kernel holds
MOST_TOKENS = 64


@operator("read_pixels", gradients="none", room=A100)
def read_pixels(queries: Tensor, pixels: Tensor, projection: Tensor) -> Tensor:
    """Tokens attend pixels: means of the pixels (B, L, D), weighted by the softmax of their products with each query
    (B, T, heads, D), each times its head's projection (heads, w, D). Returns (B, T, heads x w)."""
    scores = queries.flatten(1, 2) @ pixels.transpose(1, 2)  # (B, T * heads, L)
    means = (widened(scores).softmax(-1).to(pixels.dtype) @ pixels).view(queries.shape)
    return torch.einsum("bthd,hwd->bthw", means, projection).flatten(2)


@read_pixels.unless
def _(queries: Tensor, pixels: Tensor, projection: Tensor) -> str | None:
    return too_many(pixels.shape[2], MOST_CHANNELS, "channels")


@operator("pixels_attend_tokens", gradients="none", room=A100)
def pixels_attend_tokens(
    pixels: Tensor, keys: Tensor, added: Tensor, values: Tensor, bias: Tensor, norm: Norm
) -> Tensor:
    """norm(x + bias + sum over heads and tokens of a softmax over tokens times values), for each pixel x.

    pixels (B, L, D); keys and values (B, T, heads, D); added to the scores (B, T, heads). Scores are x . keys + added.
    """
    # Pixels come last, so that each step of the softmax over tokens runs along them. It is written out because
    # onnxruntime would turn the scores round to have the tokens last.
    scores = torch.baddbmm(added.flatten(1)[..., None], keys.flatten(1, 2), pixels.transpose(1, 2))  # (B, T * heads, L)
    scores = widened(scores).unflatten(1, added.shape[1:])
    weights = (scores - scores.amax(1, keepdim=True)).exp()
    weights = (weights / weights.sum(1, keepdim=True)).flatten(1, 2).to(pixels.dtype)
    return norm((pixels + bias).baddbmm_(weights.transpose(1, 2), values.flatten(1, 2)))


@pixels_attend_tokens.unless
def _(pixels: Tensor, keys: Tensor, *rest: Any) -> str | None:
    return too_many(keys.shape[1], MOST_TOKENS, "tokens") or too_many(pixels.shape[2], MOST_CHANNELS, "channels")
