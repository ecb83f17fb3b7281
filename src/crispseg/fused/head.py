"""The OMP head for evaluation: attention between few tokens and many pixels with its projections folded away.

A pixel is never projected. Tokens attend pixels: scores q_h (W_k x) = (W_k^T q_h) x, and the values' projection
follows the weighted mean; the keys' bias is the same for all pixels and cancels. Pixels attend tokens: scores
(W_q x + b) k_h = x (W_q^T k_h) + b k_h, and the values come with the output projection already in them. Everything
that is linear in the tokens is one product. `order` renumbers the pixels' channels so that the descriptors of
a pixel's four quarters, where it has them, lie side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from crispseg.fused.layers import Packed, Product, aligned, channels_last, convolve, padded
from crispseg.models.omp import Attention, ConcatNeck, DynamicTokens, HyperNetwork, OMPHead, TopDownNeck, TwoWayLayer
from crispseg.ops.attend import add_norm, attend_few, pixels_attend_tokens, tokens_attend_pixels
from crispseg.ops.matching import best_cosines, grouped_product, max_and_mean, mix_candidates
from crispseg.ops.resizing import resize_add


class FusedTopDown(Packed):
    weight: Tensor
    bias: Tensor

    def __init__(self, neck: TopDownNeck, order: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.laterals = nn.ModuleList(Product.of(layer.conv, dtype, relu=True) for layer in neck.lateral)
        mix = neck.mix.conv
        assert mix.bias is not None
        self.keep(dtype, weight=channels_last(mix.weight[order]), bias=mix.bias[order])

    def enter(self, i: int, feature: Tensor) -> Tensor:
        return self.laterals[i](feature)

    def merge(self, maps: Sequence[Tensor]) -> Tensor:
        x = maps[-1]
        for finer in reversed(maps[:-1]):
            x = resize_add(finer, x)
        return convolve(x, self.weight, self.bias, relu=True)


class FusedConcat(nn.Module):
    """The mixture of the concatenated maps is a sum over the stages, each with its own 1x1 product."""

    def __init__(self, neck: ConcatNeck, order: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        parts = neck.mix.weight.flatten(1)[order].chunk(len(neck.lateral), dim=1)
        self.products = nn.ModuleList(
            Product(part @ weight.flatten(1), part @ bias, dtype)
            for part, (weight, bias) in zip(parts, map(_weights, neck.lateral), strict=True)
        )

    def enter(self, i: int, feature: Tensor) -> Tensor:
        return self.products[i](feature)

    def merge(self, maps: Sequence[Tensor]) -> Tensor:
        first, *deeper = maps
        for x in deeper:
            first = resize_add(first, x)
        return first


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
        return mix_candidates(self.second(self.first(context)), self.bank)


def _weights(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.weight, layer.bias


def _per_head(linear: nn.Linear, heads: int) -> tuple[Tensor, Tensor]:
    """Weight (heads, width, in) and bias (heads, width) of a projection into heads."""
    return linear.weight.unflatten(0, (heads, -1)), linear.bias.unflatten(0, (heads, -1))


def _queries_for_pixels(attention: Attention, order: Tensor) -> tuple[Tensor, Tensor]:
    """tokens -> (heads x dim): what a token's score is with a pixel, as a vector the pixel is multiplied with."""
    (q, q_bias), (k, _) = (_per_head(linear, attention.heads) for linear in (attention.q, attention.k))
    k = k[:, :, order] / q.shape[1] ** 0.5
    return torch.einsum("hwp,hwt->hpt", k, q).flatten(0, 1), torch.einsum("hwp,hw->hp", k, q_bias).flatten()


def _from_mean_pixels(attention: Attention, order: Tensor) -> tuple[Tensor, Tensor]:
    """(heads x dim) weighted means of pixels -> what is added to a token."""
    v, _ = _per_head(attention.v, attention.heads)
    out = attention.out.weight.unflatten(1, (attention.heads, -1))  # (dim, heads, width)
    weight = torch.einsum("thw,hwp->thp", out, v[:, :, order]).flatten(1)
    return weight, attention.out.weight @ attention.v.bias + attention.out.bias


def _keys_for_pixels(attention: Attention, order: Tensor) -> tuple[Tensor, Tensor]:
    """tokens -> keys (heads x dim), values (heads x dim), added to scores (heads): for pixels as they are."""
    (q, q_bias), (k, k_bias), (v, v_bias) = (
        _per_head(linear, attention.heads) for linear in (attention.q, attention.k, attention.v)
    )
    scale = q.shape[1] ** -0.5
    q, q_bias = q[:, :, order] * scale, q_bias * scale
    out = attention.out.weight[order].unflatten(1, (attention.heads, -1))  # (dim, heads, width)
    weights = (
        torch.einsum("hwp,hwt->hpt", q, k).flatten(0, 1),
        torch.einsum("phw,hwt->hpt", out, v).flatten(0, 1),
        torch.einsum("hw,hwt->ht", q_bias, k),
    )
    biases = (
        torch.einsum("hwp,hw->hp", q, k_bias).flatten(),
        torch.einsum("phw,hw->hp", out, v_bias).flatten(),
        torch.einsum("hw,hw->h", q_bias, k_bias),
    )
    return torch.cat(weights), torch.cat(biases)


def _stacked(parts: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> Product:
    """Several linear maps of the same tokens as one product, its width aligned."""
    weight, bias = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    count = aligned(len(bias))
    return Product(padded(weight, count), padded(bias, count), dtype)


class FusedNorm(Packed):
    weight: Tensor
    bias: Tensor

    def __init__(self, norm: nn.LayerNorm, dtype: torch.dtype, order: Tensor | None = None) -> None:
        super().__init__()
        every = slice(None) if order is None else order
        self.eps = norm.eps
        self.keep(dtype, weight=norm.weight[every], bias=norm.bias[every])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """LayerNorm of x + y."""
        return add_norm(x, y, self.weight, self.bias, self.eps)


class FusedRead(nn.Module):
    """Tokens attend pixels: takes the tokens and their queries (B, T, heads x dim)."""

    def __init__(self, attention: Attention, norm: nn.LayerNorm, order: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = attention.heads
        self.out = Product(*_from_mean_pixels(attention, order), dtype)
        self.norm = FusedNorm(norm, dtype)

    def forward(self, tokens: Tensor, queries: Tensor, pixels: Tensor) -> Tensor:
        means = tokens_attend_pixels(queries.unflatten(-1, (self.heads, -1)), pixels)
        return self.norm(tokens, self.out(means.flatten(2)))


class FusedLayer(Packed):
    """One layer of two-way attention. It starts from the tokens' own queries, keys and values, which the layer before
    made together with what its pixels needed, and hands on what the next reader of the tokens starts from."""

    out_bias: Tensor

    def __init__(self, layer: TwoWayLayer, following: tuple[Tensor, Tensor], order: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        own, written = layer.self_attention, layer.pixels_to_tokens
        self.heads = own.heads
        self.own_out = Product.of(own.out, dtype)
        self.norm1 = FusedNorm(layer.norm1, dtype)
        self.queries = _stacked([_queries_for_pixels(layer.tokens_to_pixels, order)], dtype)
        self.read = FusedRead(layer.tokens_to_pixels, layer.norm2, order, dtype)
        fc1, _, fc2 = layer.mlp
        self.fc1, self.fc2 = Product.of(fc1, dtype, relu=True), Product.of(fc2, dtype)
        self.norm3 = FusedNorm(layer.norm3, dtype)
        self.after = _stacked([_keys_for_pixels(written, order), following], dtype)
        self.following = len(following[1])
        self.keep(dtype, out_bias=written.out.bias[order])
        self.norm4 = FusedNorm(layer.norm4, dtype, order)

    def forward(self, tokens: Tensor, qkv: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens = self.norm1(tokens, self.own_out(attend_few(qkv, self.heads)))
        tokens = self.read(tokens, self.queries(tokens), pixels)
        tokens = self.norm3(tokens, self.fc2(self.fc1(tokens)))
        size = self.heads * pixels.shape[-1]
        products = self.after(tokens)
        keys, values, added, following = products[..., : 2 * size + self.heads + self.following].split(
            [size, size, self.heads, self.following], dim=-1
        )
        heads = (self.heads, -1)
        pixels = pixels_attend_tokens(
            pixels,
            keys.unflatten(-1, heads),
            added,
            values.unflatten(-1, heads),
            self.out_bias,
            self.norm4.weight,
            self.norm4.bias,
            self.norm4.eps,
        )
        return tokens, following, pixels


class FusedHyper(Packed):
    def __init__(self, hyper: HyperNetwork, dtype: torch.dtype) -> None:
        super().__init__()
        self.prototypes, self.count = hyper.prototypes, len(hyper.weights)
        for i, (weight, bias) in enumerate(zip(hyper.weights, hyper.biases, strict=True)):
            self.keep(dtype, **{f"weight{i}": weight, f"bias{i}": bias[:, 0]})

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, classes, dim) -> (B, classes, K, d_h), not normalised."""
        x = tokens
        for i in range(self.count):
            x = grouped_product(x, getattr(self, f"weight{i}"), getattr(self, f"bias{i}"), relu=i < self.count - 1)
        return x.unflatten(-1, (self.prototypes, -1))


class FusedHead(nn.Module):
    """The parts of OMPHead: `neck` takes feature maps (B, h, w, C) to the pixel map, `first_tokens` the deepest one to
    tokens, and a call both to scores (B, classes, h', w') at the descriptors' stride, in float32 at least. Takes a head
    whose BatchNorms are folded."""

    def __init__(self, head: OMPHead, dtype: torch.dtype) -> None:
        super().__init__()
        dim = head.config.dim
        self.quarters = 4 if head.config.descriptor_stride == 2 else 1
        order = torch.arange(dim).unflatten(0, (-1, self.quarters)).t().flatten()
        self.neck = (
            FusedTopDown(head.neck, order, dtype)
            if isinstance(head.neck, TopDownNeck)
            else FusedConcat(head.neck, order, dtype)
        )
        self.tokens = FusedTokens(head.tokens, dtype)
        layers: list[Any] = list(head.layers)
        starts = [_own_projections(layer.self_attention) for layer in layers]
        self.start = _stacked(starts[:1], dtype)
        starts.append(_queries_for_pixels(head.final_attention, order))
        self.layers = nn.ModuleList(
            FusedLayer(layer, following, order, dtype) for layer, following in zip(layers, starts[1:], strict=True)
        )
        self.final = FusedRead(head.final_attention, head.final_norm, order, dtype)
        self.hyper = FusedHyper(head.hyper, dtype)
        self.scale = head.scale().item()

    def first_tokens(self, feature: Tensor) -> tuple[Tensor, Tensor]:
        """The class tokens, and what the first layer starts from."""
        tokens = self.tokens(feature)
        return tokens, self.start(tokens)

    def forward(self, x: Tensor, tokens: Tensor, following: Tensor) -> Tensor:
        height, width = x.shape[1:3]
        pixels = x.reshape(x.shape[0], height * width, -1)
        for layer in self.layers:
            tokens, following, pixels = layer(tokens, following, pixels)
        prototypes = self.hyper(self.final(tokens, following, pixels))
        descriptors = pixels.view(pixels.shape[0], -1, prototypes.shape[-1])  # (B, L x quarters, d_h)
        scores = best_cosines(descriptors, prototypes, self.scale)
        if self.quarters == 1:
            return scores.unflatten(-1, (height, width))
        quarters = scores.unflatten(-1, (height, width, 2, 2)).transpose(-3, -2)
        return quarters.reshape(*scores.shape[:2], 2 * height, 2 * width)


def _own_projections(attention: Attention) -> tuple[Tensor, Tensor]:
    """Queries, keys and values of tokens that attend each other."""
    linears = (attention.q, attention.k, attention.v)
    return torch.cat([linear.weight for linear in linears]), torch.cat([linear.bias for linear in linears])
