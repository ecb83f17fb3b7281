"""The pieces of an evaluation that are compared: operators of `crispseg.ops`, called as `crispseg.fused` calls
them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.kernels.network import Entry, Network, Place, Work
from crispseg.ops.infer.block import MLP, conv_norm, conv_norm_mlp, conv_norm_project
from crispseg.ops.infer.gated_mixer import gated_mixer
from crispseg.ops.infer.matching import best_cosines
from crispseg.ops.infer.pixel_attention import pixels_attend_tokens
from crispseg.ops.infer.token_attention import attend_own
from crispseg.ops.maps.convolution import convolve, convolve_image, halve_and_mix
from crispseg.ops.maps.depthwise import depthwise3x3
from crispseg.ops.maps.normalize import norm_relu_add
from crispseg.ops.maps.resizing import resize_add, upsample


def stem_image(net: Network, place: Place) -> Work:
    image = net.draw(place.batch, 3, net.size, net.size, dtype=torch.float32)
    stem = net.fused.backbone.stem
    image = image.contiguous(memory_format=torch.channels_last)
    return Work(lambda m, x: convolve_image(x, m.weight0, m.bias0), stem, (image,))


def stem_middle(net: Network, place: Place) -> Work:
    def call(m: Any, x: Tensor) -> Tensor:
        return convolve(convolve(x, m.weight1, m.bias1, relu=True), m.weight2, m.bias2, residual=x)

    stem = net.fused.backbone.stem
    return Work(call, stem, (net.map(place, len(stem.weight0)),))


def stem_end(net: Network, place: Place) -> Work:
    stem = net.fused.backbone.stem
    return Work(
        lambda m, x: halve_and_mix(x, m.weight3, m.bias3, m.last.weight, m.last.bias),
        stem,
        (net.map(place, len(stem.weight0)),),
    )


def beginning(net: Network, place: Place) -> Work:
    """A block's first half up to the norm, where the product is cuBLAS's."""
    return Work(lambda m, x: conv_norm(x, m.start1.packed()), net.fused_block(place.stage), (net.map(place),))


def to_projection(net: Network, place: Place) -> Work:
    """A block's first half up to its mixer."""

    def call(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return conv_norm_project(x, m.start1.packed(), m.mixer.project)

    return Work(call, net.fused_block(place.stage), (net.map(place),))


def second_half(net: Network, place: Place) -> Work:
    def call(m: Any, x: Tensor) -> Tensor:
        mlp = MLP(m.fc1[:, : m.hidden], m.fc1_bias[: m.hidden], m.fc2[: m.hidden], m.fc2_bias)
        return conv_norm_mlp(x, m.start2.packed(), mlp)

    return Work(call, net.fused_block(place.stage), (net.map(place),))


def fused_norm(net: Network, place: Place) -> Work:
    return Work(lambda m, x: m(x), net.fused.backbone.norms[place.stage - 1], (net.map(place),))


def fused_pyramid_step(net: Network, place: Place) -> Work:
    def call(m: Any, x: Tensor, coarser: Tensor) -> Tensor:
        norm, lateral = m
        return norm_relu_add(x, norm.packed(), lateral.weight, lateral.bias, coarser)

    parts = net.fused.backbone.norms[place.stage - 1], net.fused.head.neck.laterals[place.stage - 1]
    coarser = net.map(Place(place.batch, place.stage + 1), net.head.config.dim)
    return Work(call, nn.ModuleList(parts), (net.map(place), coarser))


def neck_end(net: Network, place: Place) -> Work:
    x = net.map(place, net.head.config.dim)
    return Work(lambda m, x: convolve(x, m.weight, m.bias, relu=True), net.fused.head.neck, (x,))


def final_scores(net: Network, place: Place) -> Work:
    side, size = net.side(place.stage), (net.size, net.size)
    scores = net.draw(place.batch, net.model.num_classes, side, side, dtype=torch.float32)
    return Work(lambda m, x: upsample(x, size), nn.Module(), (scores,))


def mixers_convolution(net: Network, place: Place) -> Work:
    """A view into what the projection gives."""

    def call(m: Any, x: Tensor) -> Tensor:
        return depthwise3x3(x, m.convolution, m.convolution_bias, activation="silu")

    mixer = net.fused_block(place.stage).mixer
    inner, mixed = len(mixer.out), len(mixer.convolution)
    return Work(call, mixer, (net.map(place, inner + mixed)[..., inner:],))


def gating(net: Network, place: Place) -> Work:
    """All between a mixer's convolution and its last product."""

    def call(m: Any, xbc: Tensor, dt: Tensor, z: Tensor) -> Tensor:
        return gated_mixer(xbc, dt, z, m.mixing.packed())

    mixer = net.fused_block(place.stage).mixer
    size = (place.batch, net.side(place.stage) ** 2)
    widths = len(mixer.convolution), len(mixer.mixing.d), len(mixer.out)
    xbc, dt, z = (net.draw(*size, width) for width in widths)
    return Work(call, mixer, (xbc, dt, z))


def halving(net: Network, place: Place) -> Work:
    down = net.fused.backbone.downsamples[place.stage - 1]
    x = net.map(place, len(down.weight))
    return Work(lambda m, x: depthwise3x3(x, m.weight, m.bias, activation="relu", stride=2), down, (x,))


def pyramid_sum(net: Network, place: Place) -> Work:
    """Of the neck that concatenates."""
    dim = net.head.config.dim
    finer, coarser = (net.map(Place(place.batch, stage), dim) for stage in (place.stage, place.stage + 1))
    return Work(lambda m, x, y: resize_add(x, y), nn.Module(), (finer, coarser))


# The head. Tokens are few: one for each class.


def class_tokens(net: Network, place: Place) -> Work:
    """From the deepest map: maximum and mean over it, a small perceptron, a mixture of candidates."""
    return Work(lambda m, x: m(x), net.fused.head.tokens, (net.map(place),))


def own_attention(net: Network, place: Place) -> Work:
    own = net.fused.head.first.attention
    return Work(lambda m, x: attend_own(x, m.packed()), own, (net.tokens(place.batch),))


def reading(net: Network, place: Place) -> Work:
    """Tokens attend pixels."""
    head, dim = net.fused.head, net.head.config.dim
    queries = net.draw(place.batch, net.model.num_classes, net.head.config.attention_heads, dim) / 16
    return Work(lambda m, q, x: m(q, x), head.layers[0].read, (queries, net.pixels(place.batch, dim)))


def between(net: Network, place: Place) -> Work:
    """What tokens do between reading the pixels and the next reading."""

    def call(m: Any, tokens: Tensor, read: Tensor) -> tuple[Tensor, ...]:
        tokens, queries, writing = m.tokens_only(tokens, read)
        return tokens, queries, writing.keys, writing.values

    return Work(call, net.fused.head.layers[0], (net.tokens(place.batch), _read(net, place.batch)))


def writing(net: Network, place: Place) -> Work:
    """Pixels attend tokens."""

    def call(m: Any, x: Tensor, keys: Tensor, added: Tensor, values: Tensor) -> Tensor:
        return pixels_attend_tokens(x, keys, added, values, m.out_bias, m.norm4.packed())

    config, classes = net.head.config, net.model.num_classes
    keys, values = (net.draw(place.batch, classes, config.attention_heads, config.dim) / 16 for _ in range(2))
    added = net.draw(place.batch, classes, config.attention_heads)
    return Work(call, net.fused.head.layers[0], (net.pixels(place.batch, config.dim), keys, added, values))


def hyper_network(net: Network, place: Place) -> Work:
    """Tokens, once joined with what they read last, to prototypes."""

    def call(m: Any, tokens: Tensor, read: Tensor) -> Tensor:
        return m[0](tokens, read, m[1].join.packed())

    parts = nn.ModuleList([net.fused.head.hyper, net.fused.head.final])
    return Work(call, parts, (net.tokens(place.batch), _read(net, place.batch)))


def matching(net: Network, place: Place) -> Work:
    inputs = net.pixels(place.batch, net.head.config.descriptor_dim), net.prototypes(place.batch).bfloat16()
    return Work(lambda m, x, prototypes: best_cosines(x, prototypes, 10.0), nn.Module(), inputs)


def _read(net: Network, batch: int) -> Tensor:
    """What tokens have read, before its projection."""
    heads, width, _ = net.fused.head.final.projection.shape
    return net.draw(batch, net.model.num_classes, heads * width)


# name, what makes it, stages
INFERENCE: list[Entry] = [
    Entry("convolve_image", stem_image, (0,)),
    Entry("convolve twice", stem_middle, (0,)),
    Entry("halve_and_mix", stem_end, (0,)),
    Entry("conv_norm", beginning, (3, 4)),
    Entry("conv_norm_project", to_projection, (1,)),
    Entry("conv_norm_mlp", second_half, (1, 2)),
    Entry("depthwise3x3 with SiLU", mixers_convolution, (1, 3)),
    Entry("gated_mixer", gating, (1, 3)),
    Entry("depthwise3x3, halving", halving, (1,)),
    Entry("fused layer_norm", fused_norm, (4,)),
    Entry("norm_relu_add", fused_pyramid_step, (1, 3)),
    Entry("convolve, neck", neck_end, (1,)),
    Entry("resize_add", pyramid_sum, (1,)),
    Entry("class tokens", class_tokens, (4,)),
    Entry("attend_own", own_attention, (1,)),
    Entry("read_pixels", reading, (1,)),
    Entry("tokens of a layer", between, (1,)),
    Entry("pixels_attend_tokens", writing, (1,)),
    Entry("hyper network", hyper_network, (1,)),
    Entry("best_cosines", matching, (1,)),
    Entry("upsample", final_scores, (1,)),
]
