"""The tokens' side of the head: each step is what a few tokens pass between two readings of the pixels. Inference only.

Kernels for so few rows wait for memory: what counts is how many follow each other, and how many bytes of weights a
program reads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.common.norm import Norm
from crispseg.ops.dispatch import A100, ANY_GPU, operator, too_many, why_no_room
from crispseg.ops.infer.matching import grouped_product
from crispseg.ops.infer.pixel_attention import MOST_CHANNELS

# The tests of these kernels with 64 tokens failed on an H200, for a reason that is not known; with 19 they pass.
_MOST_TOKENS = 32


class Join(NamedTuple):
    """How something read (B, T, in) becomes part of the tokens: LayerNorm(tokens + read weight + bias)."""

    weight: Tensor  # (in, D)
    bias: Tensor
    norm: Norm

    def __call__(self, tokens: Tensor, read: Tensor) -> Tensor:
        return self.norm(tokens + functional.linear(read, self.weight.t(), self.bias))


class Perceptron(NamedTuple):
    """relu(t first^T + first_bias) second + second_bias."""

    first: Tensor  # (hidden, D)
    first_bias: Tensor
    second: Tensor  # (hidden, D)
    second_bias: Tensor

    def __call__(self, tokens: Tensor) -> Tensor:
        return functional.linear(tokens, self.first, self.first_bias).relu_() @ self.second + self.second_bias


class Vectors(NamedTuple):
    """Vectors that pixels are multiplied with: of each group, (t first^T + bias) second. A group is a head's keys,
    values or queries, and its inner width is small. `score` times the same inner vector is added to the scores."""

    first: Tensor  # (G, w, D)
    bias: Tensor  # (G, w)
    second: Tensor  # (G, w, D)
    score: Tensor  # (G, w)

    def __call__(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        inner = torch.einsum("btd,gwd->btgw", tokens, self.first) + self.bias
        return torch.einsum("btgw,gwd->btgd", inner, self.second), (inner * self.score).sum(-1)


class OwnAttention(NamedTuple):
    """Tokens attend each other; without the output projection."""

    weight: Tensor  # (3 D, D): queries, keys, values
    bias: Tensor
    heads: int

    def __call__(self, tokens: Tensor) -> Tensor:
        qkv = functional.linear(tokens, self.weight, self.bias)
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, heads, T, D / heads) each
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _too_large(tokens: Tensor, *rest: Any) -> str | None:
    return too_many(tokens.shape[-1], MOST_CHANNELS, "channels") or too_many(tokens.shape[-2], _MOST_TOKENS, "tokens")


def _too_wide(own: OwnAttention | None) -> str | None:
    return None if own is None else too_many(own.weight.shape[1], 128 * own.heads, "channels of these heads")


@operator("join_perceptron", gradients="none", room=ANY_GPU, of=2)
def join_perceptron(tokens: Tensor, read: Tensor, join: Join, perceptron: Perceptron) -> Tensor:
    """With t = join(tokens, read): parts (P, B, T, D), whose sum over P is t + perceptron(t)."""
    t = join(tokens, read)
    return (t + perceptron(t))[None]


@operator(
    "settle",
    gradients="none",
    room=ANY_GPU,
    of=lambda parts, norm, vectors, own: (vectors.first,),
)
def settle(parts: Tensor, norm: Norm, vectors: Vectors, own: OwnAttention | None) -> tuple[Tensor, ...]:
    """With t the sum over parts (P, B, T, D), normalised: t, its vectors (B, T, G, D) and scores (B, T, G), and
    what the tokens get from each other (B, T, D), which is empty without `own`."""
    t = norm(parts.sum(0).to(vectors.first.dtype))
    return (t, *vectors(t), t.new_empty(0) if own is None else own(t))


@operator("attend_own", gradients="none", room=ANY_GPU)
def attend_own(tokens: Tensor, own: OwnAttention) -> Tensor:
    """What tokens (B, T, D) get from each other."""
    return own(tokens)


@operator("join_vectors", gradients="none", room=ANY_GPU, of=2)
def join_vectors(tokens: Tensor, read: Tensor, join: Join, vectors: Vectors) -> tuple[Tensor, Tensor]:
    """t = join(tokens, read) and its vectors (B, T, G, D)."""
    t = join(tokens, read)
    return t, vectors(t)[0]


@operator("join_grouped", gradients="none", room=ANY_GPU, of=2)
def join_grouped(tokens: Tensor, read: Tensor, join: Join, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """`grouped_product` of join(tokens, read)."""
    return grouped_product(join(tokens, read), weight, bias, relu)


join_vectors.unless(_too_large)
join_grouped.unless(_too_large)


@join_perceptron.unless
def _(tokens: Tensor, *rest: Any) -> str | None:
    wide = tokens.shape[-1] > 128  # 132 KB with 256 channels
    return _too_large(tokens) or (why_no_room(tokens.device, A100) if wide else None)


@settle.unless
def _(parts: Tensor, norm: Norm, vectors: Vectors, own: OwnAttention | None) -> str | None:
    return _too_large(parts) or _too_wide(own)


@attend_own.unless
def _(tokens: Tensor, own: OwnAttention) -> str | None:
    return _too_large(tokens) or _too_wide(own)
