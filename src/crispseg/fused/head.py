"""The OMP head for evaluation: attention between few tokens and many pixels with its projections folded away.

A pixel is never projected. Tokens attend pixels: scores q_h (W_k x) = (W_k^T q_h) x, and the values' projection
follows the weighted mean; the keys' bias is the same for all pixels and cancels. Pixels attend tokens: scores
(W_q x + b) k_h = x (W_q^T k_h) + b k_h, and the values come with the output projection already in them. The vectors
W_k^T q_h, W_q^T k_h and these values are made from the tokens in two narrow steps, which are an eighth of the weights
that the product of the two would have. `order` renumbers the pixels' channels so that the descriptors of a pixel's
four quarters, where it has them, lie side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from crispseg.fused.layers import FusedNorm, Kept, Packed, Product
from crispseg.fused.side_stream import SideStream
from crispseg.fused.stages import StageMaps
from crispseg.ops.common.norm import Norm
from crispseg.ops.cpu import attention_in_parts, onednn
from crispseg.ops.cpu.attention_in_parts import Writing
from crispseg.ops.infer.matching import best_cosines, grouped_product, max_and_mean, mix_candidates
from crispseg.ops.infer.pixel_attention import pixels_attend_tokens, read_pixels
from crispseg.ops.infer.token_attention import (
    Join,
    OwnAttention,
    Perceptron,
    Vectors,
    attend_own,
    join_grouped,
    join_perceptron,
    join_vectors,
    settle,
)

if TYPE_CHECKING:
    from crispseg.models.omp import Attention, DynamicTokens, HyperNetwork, OMPHead, TwoWayLayer


class FusedTokens(Packed):
    bank: Tensor  # (classes, M, dim): does not depend on the image

    def __init__(self, tokens: DynamicTokens, dtype: torch.dtype) -> None:
        super().__init__()
        first, _, second = tokens.weigh
        weight, bias = _weights(first)
        max_part, mean_part = weight.chunk(2, dim=1)
        weight = torch.cat([max_part @ tokens.from_max.weight, mean_part @ tokens.from_mean.weight], dim=1)
        bias = bias + max_part @ tokens.from_max.bias + mean_part @ tokens.from_mean.bias
        self.reduce = Product.of(tokens.reduce, dtype)
        self.first = Product(weight, bias, dtype, relu=True)
        self.second = Product.of(second, dtype)
        self.keep(dtype, bank=tokens.expand(tokens.embedding).unflatten(-1, (tokens.candidates, -1)))

    def forward(self, feature: Tensor) -> Tensor:
        """The deepest feature map (B, h, w, C) -> tokens (B, classes, dim)."""
        context = max_and_mean(self.reduce(feature.flatten(1, 2)))
        return mix_candidates(self.first(context), self.second.weight, self.second.bias, self.bank)


def _weights(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.weight, layer.bias


def _per_head(linear: nn.Linear, heads: int) -> tuple[Tensor, Tensor]:
    """Weight (heads, width, in) and bias (heads, width) of a projection into heads."""
    return linear.weight.unflatten(0, (heads, -1)), linear.bias.unflatten(0, (heads, -1))


def _queries(attention: Attention, order: Tensor) -> list[Tensor]:
    """tokens -> what a pixel is multiplied with for a token's score, of each head: the parts of `Vectors`."""
    (q, q_bias), (k, _) = (_per_head(linear, attention.heads) for linear in (attention.q, attention.k))
    return [q, q_bias, k[:, :, order] / q.shape[1] ** 0.5, torch.zeros_like(q_bias)]


def _keys_and_values(attention: Attention, order: Tensor) -> list[Tensor]:
    """tokens -> keys, then values, for pixels as they are: the parts of `Vectors`, of which the keys' have scores."""
    (q, q_bias), (k, k_bias), (v, v_bias) = (
        _per_head(linear, attention.heads) for linear in (attention.q, attention.k, attention.v)
    )
    scale = q.shape[1] ** -0.5
    out = attention.out.weight[order].unflatten(1, (attention.heads, -1)).permute(1, 2, 0)  # (heads, width, dim)
    keys = [k, k_bias, q[:, :, order] * scale, q_bias * scale]
    return [torch.cat(pair) for pair in zip(keys, [v, v_bias, out, torch.zeros_like(v_bias)], strict=True)]


def _vectors(*sets: list[Tensor]) -> Vectors:
    """Several sets of vectors of the same tokens."""
    return Vectors(*(torch.cat(tensors).contiguous() for tensors in zip(*sets, strict=True)))


def _join(out: nn.Linear, norm: nn.LayerNorm, offset: Tensor | None = None) -> Join:
    """The output projection of an attention, residual and LayerNorm; `offset` is added to what is projected."""
    bias = out.bias if offset is None else out.bias + out.weight @ offset
    return Join(out.weight.t().contiguous(), bias, Norm(norm.weight, norm.bias, norm.eps))


def _fold_centre(norm: nn.LayerNorm, centre: nn.BatchNorm2d) -> None:
    """Centring follows the last norm of the pixels: one affine map after another."""
    assert centre.running_mean is not None and centre.running_var is not None
    scale = (centre.running_var + centre.eps).rsqrt()
    norm.weight = nn.Parameter(norm.weight * scale)
    norm.bias = nn.Parameter((norm.bias - centre.running_mean) * scale)


class FusedRead(Packed):
    """Tokens attend pixels: their queries (B, T, heads, dim) and the pixels -> what `join` takes."""

    projection: Tensor  # (heads, width, dim): the values' projection, applied to means of pixels

    def __init__(self, attention: Attention, norm: nn.LayerNorm, order: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        values, bias = _per_head(attention.v, attention.heads)
        self.keep(dtype, projection=values[:, :, order].contiguous())
        self.join = Kept(_join(attention.out, norm, bias.flatten()), dtype)

    def forward(self, queries: Tensor, pixels: Tensor) -> Tensor:
        return read_pixels(queries, pixels, self.projection)


class FusedOwn(nn.Module):
    """Tokens attend each other, and then have queries for the pixels."""

    def __init__(self, layer: TwoWayLayer, order: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        own = layer.self_attention
        weight, bias = (torch.cat(tensors) for tensors in zip(*map(_weights, (own.q, own.k, own.v)), strict=True))
        self.attention = Kept(OwnAttention(weight, bias, own.heads), dtype)
        self.join = Kept(_join(own.out, layer.norm1), dtype)
        self.queries = Kept(_vectors(_queries(layer.tokens_to_pixels, order)), dtype)

    def forward(self, tokens: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens, and what they got from each other -> tokens, queries (B, T, heads, dim)."""
        return join_vectors(tokens, attended, self.join.packed(), self.queries.packed())


class FusedLayer(Packed):
    """One layer of two-way attention, from its tokens' queries to those of the next reader: the next layer, whose
    tokens first attend each other (`following`), or the final attention (whose queries are among `vectors`)."""

    out_bias: Tensor

    def __init__(
        self,
        layer: TwoWayLayer,
        following: FusedOwn | None,
        final: Sequence[list[Tensor]],
        order: Tensor,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        written = layer.pixels_to_tokens
        self.heads = written.heads
        self.read = FusedRead(layer.tokens_to_pixels, layer.norm2, order, dtype)
        (first, first_bias), (second, second_bias) = map(_weights, (layer.mlp[0], layer.mlp[2]))
        self.perceptron = Kept(Perceptron(first, first_bias, second.t().contiguous(), second_bias), dtype)
        self.norm3 = FusedNorm(layer.norm3, dtype)
        self.vectors = Kept(_vectors(_keys_and_values(written, order), *final), dtype)
        self.keep(dtype, out_bias=written.out.bias[order])
        self.norm4 = FusedNorm(layer.norm4, dtype, order)
        self.following = following

    def forward(self, tokens: Tensor, queries: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens, queries, writing = self.tokens_only(tokens, self.read(queries, pixels))
        return tokens, queries, pixels_attend_tokens(pixels, *writing)

    def tokens_only(self, tokens: Tensor, read: Tensor) -> tuple[Tensor, Tensor, Writing]:
        """Tokens and what they read -> tokens, the next reader's queries, and what the pixels get."""
        parts = join_perceptron(tokens, read, self.read.join.packed(), self.perceptron.packed())
        own = self.following.attention.packed() if self.following is not None else None
        tokens, vectors, added, attended = settle(parts, self.norm3.packed(), self.vectors.packed(), own)
        keys, values, queries = vectors.tensor_split((self.heads, 2 * self.heads), dim=2)
        if self.following is not None:
            tokens, queries = self.following(tokens, attended)
        return tokens, queries, Writing(keys, added[..., : self.heads], values, self.out_bias, self.norm4.packed())


class FusedHyper(Packed):
    def __init__(self, hyper: HyperNetwork, dtype: torch.dtype) -> None:
        super().__init__()
        self.prototypes, self.count = hyper.prototypes, len(hyper.weights)
        for i, (weight, bias) in enumerate(zip(hyper.weights, hyper.biases, strict=True)):
            self.keep(dtype, **{f"weight{i}": weight, f"bias{i}": bias[:, 0]})

    def forward(self, tokens: Tensor, read: Tensor, join: Join) -> Tensor:
        """Of the joined tokens (B, classes, dim): (B, classes, K, d_h), not normalised."""
        x = join_grouped(tokens, read, join, *self._layer(0))
        for i in range(1, self.count):
            x = grouped_product(x, *self._layer(i))
        return x.unflatten(-1, (self.prototypes, -1))

    def _layer(self, i: int) -> tuple[Tensor, Tensor, bool]:
        """Weight, bias, and whether a ReLU follows."""
        return getattr(self, f"weight{i}"), getattr(self, f"bias{i}"), i < self.count - 1


class Scores(NamedTuple):
    logits: Tensor  # (B, classes, h, w) at the descriptors' stride, in float32 at least


class FusedHead(nn.Module):
    """Feature maps -> scores, as OMPHead's. Takes a head whose BatchNorms are folded."""

    def __init__(self, head: OMPHead, dtype: torch.dtype) -> None:
        super().__init__()
        dim = head.config.dim
        self.side = head.descriptors_along_a_side
        order = torch.arange(dim).unflatten(0, (-1, self.side**2)).t().flatten()
        self.neck = head.neck.in_fused_head(order, dtype)
        self.tokens = FusedTokens(head.tokens, dtype)
        layers: list[Any] = list(head.layers)
        if head.centre is not None:
            _fold_centre(layers[-1].norm4, head.centre)
        final = [_queries(head.final_attention, order)]
        first, *others = (FusedOwn(layer, order, dtype) for layer in layers)
        self.first = first
        self.layers = nn.ModuleList(
            FusedLayer(layer, following, [] if following else final, order, dtype)
            for layer, following in zip(layers, [*others, None], strict=True)
        )
        self.final = FusedRead(head.final_attention, head.final_norm, order, dtype)
        self.hyper = FusedHyper(head.hyper, dtype)
        self.scale = head.scale().item()
        self.side_stream = SideStream()

    def forward(self, features: Sequence[Tensor]) -> Scores:
        """The first tokens are made aside, while the neck is at work."""
        stages = StageMaps.of(features)
        deepest = stages.normed(-1)
        tokens = self.side_stream(self._first_tokens, deepest)
        x = self.neck(stages, deepest)
        scores = self._scores(x.flatten(1, 2), *tokens())
        height, width = x.shape[1:3]
        squares = scores.unflatten(-1, (height, width, self.side, self.side)).transpose(-3, -2)
        return Scores(squares.reshape(*scores.shape[:2], height * self.side, width * self.side))

    def _first_tokens(self, feature: Tensor) -> tuple[Tensor, Tensor]:
        """The class tokens, which have attended each other, and the queries with which they read the pixels."""
        tokens = self.tokens(feature)
        return self.first(tokens, attend_own(tokens, self.first.attention.packed()))

    def _scores(self, pixels: Tensor, tokens: Tensor, queries: Tensor) -> Tensor:
        """(B, classes, h w quarters)."""
        if onednn.applies(pixels, way="attention_in_parts"):
            return self._by_parts(pixels, tokens, queries)
        for layer in self.layers:
            tokens, queries, pixels = layer(tokens, queries, pixels)
        prototypes = self.hyper(tokens, self.final(queries, pixels), self.final.join.packed())
        descriptors = pixels.view(pixels.shape[0], -1, prototypes.shape[-1])  # (B, L x quarters, d_h)
        return best_cosines(descriptors, prototypes, self.scale)

    def _by_parts(self, pixels: Tensor, tokens: Tensor, queries: Tensor) -> Tensor:
        """The same; as the next queries depend on the tokens alone, a layer passes the pixels once. Overwrites them."""
        layers: list[Any] = list(self.layers)
        images: Sequence[attention_in_parts.Parts] = attention_in_parts.split(pixels)
        read = attention_in_parts.read(images, queries, layers[0].read.projection)
        for layer, reader in zip(layers, [*(layer.read for layer in layers[1:]), self.final], strict=True):
            tokens, queries, writing = layer.tokens_only(tokens, read)
            images, read = attention_in_parts.write_and_read(images, writing, queries, reader.projection)
        return attention_in_parts.best_cosines(images, self.hyper(tokens, read, self.final.join.packed()), self.scale)
