"""The pieces of a training step that are compared: operators of `crispseg.ops`, called as models call them.

Weights are the network's own, drawn anew; the inputs are shaped as they come to this place, of an image of 512 px. All
are exact in bfloat16. Where a model asks whether an operator takes its tensors, and computes the formula itself if not,
so does the case.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.kernels.network import Entry, Network, Place, Work
from crispseg.layout import to_channels_first
from crispseg.losses import cross_entropy
from crispseg.ops import ncssd
from crispseg.ops.maps.depthwise import depthwise3x3
from crispseg.ops.maps.normalize import layer_norm
from crispseg.ops.maps.resizing import add_resized
from crispseg.ops.train.cross_attention import cross_attention
from crispseg.ops.train.drop_path import add_kept
from crispseg.ops.train.gated_mixer import convolve_mix_gate
from crispseg.ops.train.matching import best_match, soft_match
from crispseg.ops.train.mlp import linear

_IGNORED = 255


def norm_of_stage(net: Network, place: Place) -> Work:
    norm = getattr(net.model.backbone, f"outnorm{place.stage - 1}")
    return Work(lambda m, x: layer_norm(x, m.weight, m.bias, m.eps), norm, (net.map(place),))


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
        gates, conv = m.gates(), m.conv2d
        mixed = convolve_mix_gate(projected, conv.weight, conv.bias, m.mixing(gates))
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
        return cross_attention(q, kv, heads)

    q = net.draw(place.batch, tokens, inner)
    kv = net.draw(place.batch, tokens, 2 * inner) if own else net.pixels(place.batch, 2 * inner)
    return Work(call, nn.Module(), (q, kv))


def matching(net: Network, place: Place) -> Work:
    descriptors = to_channels_first(net.map(place, net.head.config.descriptor_dim))
    inputs = descriptors, net.prototypes(place.batch)
    return Work(lambda m, x, prototypes: best_match(x, prototypes)[0], nn.Module(), inputs)


def soft_matching(net: Network, place: Place) -> Work:
    """As sharp as at the start of a training."""
    descriptors, prototypes = matching(net, place).inputs
    sharpness = net.head.scale().detach()
    return Work(lambda m, *inputs: soft_match(*inputs), nn.Module(), (descriptors, prototypes, sharpness))


def entropy(net: Network, place: Place) -> Work:
    size = (place.batch, net.size, net.size)
    target = torch.randint(net.model.num_classes, size, device=net.device)
    target[torch.rand(size, device=net.device) < 0.1] = _IGNORED
    logits = net.draw(place.batch, net.model.num_classes, net.size, net.size, dtype=torch.float32)
    return Work(lambda m, x, target: cross_entropy(x, target), nn.Module(), (logits,), (target,), autocast=False)


def operator(net: Network, place: Place) -> Work:
    """NC-SSD with DCO alone."""
    mixer = net.block(place.stage).attn
    size = (place.batch, net.side(place.stage) ** 2)
    v = net.draw(*size, mixer.heads, mixer.head_width)
    b, c = (net.draw(*size, mixer.state) for _ in range(2))
    rho = net.draw(*size, mixer.heads, dtype=torch.float32).abs()
    return Work(lambda m, *tokens: ncssd(*tokens, m.D, m.gates(), m.rule), mixer, (v, b, c, rho), autocast=False)


def mixers_convolution(net: Network, place: Place) -> Work:
    """A view into what the projection gives."""
    mixer = net.block(place.stage).attn
    z, mixed = mixer.heads * mixer.head_width, mixer.conv2d.in_channels
    x = net.map(place, z + mixed)[..., z:]
    return Work(lambda m, x: depthwise3x3(x, m.weight, m.bias, activation="silu"), mixer.conv2d, (x,))


def halving(net: Network, place: Place) -> Work:
    """The strided convolution between stages."""
    conv = net.model.backbone.layers[place.stage - 1].downsample.conv[1].conv
    x = net.map(place, conv.in_channels)
    return Work(lambda m, x: depthwise3x3(x, m.weight, m.bias, activation="relu", stride=2), conv, (x,))


_WITH_RELU = functools.partial(norm_of_batch, relu=True)
_WITHOUT_RELU = functools.partial(norm_of_batch, relu=False)
_OWN = functools.partial(attending, own=True)
_PIXELS = functools.partial(attending, own=False)

# name, what makes it, stages
TRAINING: list[Entry] = [
    Entry("layer_norm", norm_of_stage, (1, 3)),
    Entry("depthwise3x3 with SiLU", mixers_convolution, (1, 3)),
    Entry("depthwise3x3, halving", halving, (1,)),
    Entry("ncssd", operator, (1, 3)),
    Entry("mlp", perceptron, (1, 3)),
    Entry("linear with ReLU", widening, (1,)),
    Entry("linear of pixels", keys_and_values, (1,)),
    Entry("convolve_mix_gate", mixing, (1, 3)),
    Entry("batch_norm", _WITHOUT_RELU, (0,)),
    Entry("batch_norm with ReLU", _WITH_RELU, (1,)),
    Entry("add_kept", drop_path, (1,)),
    Entry("add_resized", pyramid_step, (1,)),
    Entry("cross_attention, own", _OWN, (1,)),
    Entry("cross_attention, pixels", _PIXELS, (1,)),
    Entry("best_match", matching, (1,)),
    Entry("soft_match", soft_matching, (1,)),
    Entry("cross_entropy", entropy, (1,)),
]
