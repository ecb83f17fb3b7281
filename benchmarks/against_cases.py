"""The pieces of work that `against_compiled.py` compares: operators of `crispseg.ops`, called as the models call them.

Weights are the network's own, drawn anew; the inputs are shaped as they come to this place, of an image of 512 px. All
are exact in bfloat16. Where a model asks whether an operator takes its tensors, and computes the formula itself if not,
so does the case.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from against_network import Network, Place, Work  # beside this file
from torch import Tensor, nn

from crispseg.losses import cross_entropy
from crispseg.models.layers import to_channels_first
from crispseg.ops import ncssd
from crispseg.ops.infer.block import MLP, Start, conv_norm_mlp, conv_norm_project
from crispseg.ops.maps.convolution import convolve, convolve_image, halve_and_mix
from crispseg.ops.maps.depthwise import depthwise3x3_norm
from crispseg.ops.maps.normalize import layer_norm, norm_relu_add
from crispseg.ops.maps.resizing import add_resized, resize_scores, upsample
from crispseg.ops.train import cross_attention, residual_attention
from crispseg.ops.train.drop_path import add_kept
from crispseg.ops.train.gated_mixer import convolve_mix_gate
from crispseg.ops.train.matching import best_match
from crispseg.ops.train.mlp import linear
from crispseg.ops.train.residual_attention import Layers

_IGNORED = 255


class Case(NamedTuple):
    name: str
    way: str  # "forward" (inference), "forward+backward" (training), "training's forward" (what has no gradient)
    batch: int
    make: Callable[[], Work]


# Training.


def norm_of_stage(net: Network, place: Place) -> Work:
    norm = getattr(net.model.backbone, f"outnorm{place.stage - 1}")
    return Work(lambda m, x: layer_norm(x, m.weight, m.bias, m.eps), norm, (net.map(place),))


def position_and_norm(net: Network, place: Place) -> Work:
    def call(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        conv, norm = m
        return depthwise3x3_norm(x, conv.weight, conv.bias, norm.weight, norm.bias, norm.eps)

    block = net.block(place.stage)
    return Work(call, nn.ModuleList([block.cpe1, block.norm1]), (net.map(place),))


def perceptron(net: Network, place: Place) -> Work:
    return Work(lambda m, x: m(x), net.block(place.stage).mlp, (net.map(place),))


def widening(net: Network, place: Place) -> Work:
    """A product with ReLU, the first of those between stages."""
    layer = net.model.backbone.layers[place.stage - 1].downsample.conv[0].conv
    return Work(lambda m, x: linear(x, m.weight.flatten(1), m.bias, relu=True), layer, (net.map(place),))


def keys_and_values(net: Network, place: Place) -> Work:
    """Of all pixels: a product with bias."""
    attention = net.head.layers[0].tokens_to_pixels
    return Work(lambda m, x: m.keys_and_values(x), attention, (net.pixels(place.batch, net.head.config.dim),))


def mixing(net: Network, place: Place) -> Work:
    """All between a mixer's two projections."""

    def call(m: Any, projected: Tensor) -> Tensor:
        gates, conv, norm = m.gates(), m.conv2d, m.norm
        mixed = convolve_mix_gate(
            projected,
            conv.weight,
            conv.bias,
            m.dt_bias,
            m.A_log,
            m.D,
            gates,
            m.rule,
            norm.weight,
            norm.bias,
            norm.eps,
        )
        if mixed is not None:
            return mixed
        z, xbc, dt = m._split(projected)
        v, b, c, rho = m.tokens(m.convolve(xbc), dt)
        return m.finish(ncssd(v, b, c, rho, m.D, gates, m.rule), z)

    mixer = copy.deepcopy(net.block(place.stage).attn)
    mixer.out_proj = nn.Identity()
    width = mixer.in_proj.out_features
    return Work(call, mixer, (net.map(place, width + -width % 8),))


def norm_of_batch(net: Network, place: Place, relu: bool) -> Work:
    """The stem's, where it has most channels (stage 1), or most pixels (stage 0)."""
    stem = net.model.backbone.patch_embed
    norm = stem.conv3[0].norm if place.stage else stem.conv2[1].norm
    x = to_channels_first(net.map(place, norm.num_features))
    return Work(lambda m, x: m(x, relu=relu), norm, (x,))


def drop_path(net: Network, place: Place) -> Work:
    rate = net.block(place.stage).drop_path.rate
    drawn = torch.rand(place.batch, device=net.device)
    return Work(
        lambda m, x, branch, drawn: add_kept(x, branch, drawn, rate),
        nn.Module(),
        (net.map(place), net.map(place)),
        (drawn,),
    )


def pyramid_step(net: Network, place: Place) -> Work:
    dim = net.head.config.dim
    finer, coarser = (net.map(Place(place.batch, stage), dim) for stage in (place.stage, place.stage + 1))
    return Work(lambda m, x, y: add_resized(x, y), nn.Module(), (to_channels_first(finer), to_channels_first(coarser)))


def attending(net: Network, place: Place, own: bool) -> Work:
    """Tokens read pixels, or each other."""
    attention = net.head.layers[0].self_attention if own else net.head.layers[0].tokens_to_pixels
    heads, inner, tokens = attention.heads, attention.q.out_features, net.model.num_classes

    def call(m: Any, q: Tensor, kv: Tensor) -> Tensor:
        if cross_attention.takes(q, kv.shape[1], heads):
            return cross_attention.few_tokens_attention(q, kv, heads)
        return cross_attention.attention(q, *kv.chunk(2, dim=-1), heads)

    q = net.draw(place.batch, tokens, inner)
    kv = net.draw(place.batch, tokens, 2 * inner) if own else net.pixels(place.batch, 2 * inner)
    return Work(call, nn.Module(), (q, kv))


def reading_tokens(net: Network, place: Place) -> Work:
    """Pixels attend tokens, with residual and norm."""

    def call(m: Any, x: Tensor, kv: Tensor) -> Tensor:
        (q, out), norm, heads = (m.pixels_to_tokens.q, m.pixels_to_tokens.out), m.norm4, m.pixels_to_tokens.heads
        layers = Layers(q.weight, q.bias, out.weight, out.bias, norm.weight, norm.bias)
        if residual_attention.takes(x, kv.shape[1], heads, layers):
            return residual_attention.residual_attention(x, kv, layers, norm.eps, heads)
        read = cross_attention.attention(linear(x, q.weight, q.bias), *kv.chunk(2, dim=-1), heads)
        return layer_norm(x + linear(read, out.weight, out.bias), norm.weight, norm.bias, norm.eps)

    layer = net.head.layers[0]
    kv = net.draw(place.batch, net.model.num_classes, 2 * layer.pixels_to_tokens.q.out_features)
    return Work(call, layer, (net.pixels(place.batch, net.head.config.dim), kv))


def matching(net: Network, place: Place) -> Work:
    descriptors = to_channels_first(net.map(place, net.head.config.descriptor_dim))
    inputs = descriptors, net.prototypes(place.batch)
    return Work(lambda m, x, prototypes: best_match(x, prototypes)[0], nn.Module(), inputs)


def resizing_scores(net: Network, place: Place) -> Work:
    side, size = net.side(place.stage), (net.size, net.size)
    scores = net.draw(place.batch, net.model.num_classes, side, side, dtype=torch.float32)
    return Work(lambda m, x: resize_scores(x, size), nn.Module(), (scores,))


def entropy(net: Network, place: Place) -> Work:
    size = (place.batch, net.size, net.size)
    target = torch.randint(net.model.num_classes, size, device=net.device)
    target[torch.rand(size, device=net.device) < 0.1] = _IGNORED
    logits = net.draw(place.batch, net.model.num_classes, net.size, net.size, dtype=torch.float32)
    return Work(lambda m, x, target: cross_entropy(x, target), nn.Module(), (logits,), (target,), autocast=False)


# Inference.


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


def to_projection(net: Network, place: Place) -> Work:
    """A block's first half up to its mixer."""

    def call(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return conv_norm_project(x, Start(m.conv1, m.bias1, m.norm1, m.shift1, m.eps1), m.mixer.project)

    return Work(call, net.fused_block(place.stage), (net.map(place),))


def second_half(net: Network, place: Place) -> Work:
    def call(m: Any, x: Tensor) -> Tensor:
        mlp = MLP(m.fc1[:, : m.hidden], m.fc1_bias[: m.hidden], m.fc2[: m.hidden], m.fc2_bias)
        return conv_norm_mlp(x, Start(m.conv2, m.bias2, m.norm2, m.shift2, m.eps2), mlp)

    return Work(call, net.fused_block(place.stage), (net.map(place),))


def fused_norm(net: Network, place: Place) -> Work:
    return Work(lambda m, x: m(x), net.fused.backbone.norms[place.stage - 1], (net.map(place),))


def fused_pyramid_step(net: Network, place: Place) -> Work:
    def call(m: Any, x: Tensor, coarser: Tensor) -> Tensor:
        norm, lateral = m
        return norm_relu_add(x, *norm.packed(), lateral.weight, lateral.bias, coarser)

    parts = net.fused.backbone.norms[place.stage - 1], net.fused.head.neck.laterals[place.stage - 1]
    coarser = net.map(Place(place.batch, place.stage + 1), net.head.config.dim)
    return Work(call, nn.ModuleList(parts), (net.map(place), coarser))


def neck_end(net: Network, place: Place) -> Work:
    x = net.map(place, net.head.config.dim)
    return Work(lambda m, x: convolve(x, m.weight, m.bias, relu=True), net.fused.head.neck, (x,))


def final_scores(net: Network, place: Place) -> Work:
    side, size = net.side(place.stage), (net.size, net.size)
    scores = net.draw(place.batch, net.model.num_classes, side * side, dtype=torch.float32)
    return Work(lambda m, x: upsample(x, (side, side), size), nn.Module(), (scores,))


_WITH_RELU = functools.partial(norm_of_batch, relu=True)
_WITHOUT_RELU = functools.partial(norm_of_batch, relu=False)
_OWN = functools.partial(attending, own=True)
_PIXELS = functools.partial(attending, own=False)

# name, what makes it, stages
TRAINING: list[tuple[str, Callable[[Network, Place], Work], tuple[int, ...]]] = [
    ("layer_norm", norm_of_stage, (1, 3)),
    ("depthwise3x3_norm", position_and_norm, (1, 3)),
    ("mlp", perceptron, (1, 3)),
    ("linear with ReLU", widening, (1,)),
    ("linear of pixels", keys_and_values, (1,)),
    ("convolve_mix_gate", mixing, (1, 3)),
    ("batch_norm", _WITHOUT_RELU, (0,)),
    ("batch_norm with ReLU", _WITH_RELU, (1,)),
    ("add_kept", drop_path, (1,)),
    ("add_resized", pyramid_step, (1,)),
    ("few_tokens_attention, own", _OWN, (1,)),
    ("few_tokens_attention, pixels", _PIXELS, (1,)),
    ("residual_attention", reading_tokens, (1,)),
    ("best_match", matching, (1,)),
    ("resize_scores", resizing_scores, (1,)),
    ("cross_entropy", entropy, (1,)),
]
INFERENCE: list[tuple[str, Callable[[Network, Place], Work], tuple[int, ...]]] = [
    ("convolve_image", stem_image, (0,)),
    ("convolve twice", stem_middle, (0,)),
    ("halve_and_mix", stem_end, (0,)),
    ("conv_norm_project", to_projection, (1,)),
    ("conv_norm_mlp", second_half, (1, 2)),
    ("fused layer_norm", fused_norm, (4,)),
    ("norm_relu_add", fused_pyramid_step, (1, 3)),
    ("convolve, neck", neck_end, (1,)),
    ("upsample", final_scores, (1,)),
]
_IMAGES = 16  # of a training step, and of the larger of two batches for inference
# Where the network does not call the kernel, as pixels are too few.
_LEFT_OUT = {("conv_norm_mlp, stage 2", 1)}


def all_cases(net: Network) -> list[Case]:
    many = 2 if net.size < 512 else _IMAGES
    found = []
    ways = (TRAINING, "forward+backward", (many,)), (INFERENCE, "forward", (1, many))
    for works, way, batches in ways:
        for name, make, stages in works:
            for stage, batch in itertools.product(stages, batches):
                label = f"{name}, stage {stage}" if len(stages) > 1 else name
                if (label, batch) not in _LEFT_OUT:
                    found.append(Case(label, way, batch, functools.partial(make, net, Place(batch, stage))))
    return sorted(found, key=lambda case: (case.name, case.batch))
