"""The multi-prototype head over a scene in bands.

The pixel map is kept (its neck is too dear to repeat) and swept once per layer of two-way attention: a sweep updates
the pixels by the previous layer's tokens and lets this layer's tokens attend them. The last sweep matches.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional

from crispseg.exact.attention import StreamedAttention
from crispseg.exact.backbone import stage_rows
from crispseg.exact.context import Context
from crispseg.exact.resize import BandResize
from crispseg.exact.stream import Stream, apply, bands, convolution, slide
from crispseg.layout import to_channels_first, to_channels_last
from crispseg.models.crisp import CRISP
from crispseg.models.omp import Attention, ConcatNeck, DynamicTokens, OMPHead, TopDownNeck, TwoWayLayer
from crispseg.models.vssd import VSSD
from crispseg.ops.common.precision import widened
from crispseg.ops.train.matching import match


def run_omp(run: Context, model: CRISP) -> Stream:
    """The scene's logits, from the stages' maps; these are closed on the way."""
    head = model.head
    tokens = _class_tokens(run, model.backbone, head.tokens)
    run.open("pixels")
    tokens = _interact(run, head, tokens, _neck(run, model.backbone, head.neck))
    prototypes = functional.normalize(widened(head.hyper(tokens)), dim=-1)
    shuffle = 4 // (head.config.descriptor_stride or 4)
    height, width = run.plan.sizes[0]
    scene = (run.plan.height, run.plan.width)
    full = BandResize((shuffle * height, shuffle * width), scene, prototypes.dtype)
    return full.stream(_matched(run, head, prototypes, shuffle))


def _class_tokens(run: Context, backbone: VSSD, module: DynamicTokens) -> Tensor:
    """`DynamicTokens` with its maximum and mean taken over bands."""
    maximum = mean = torch.empty(0)
    height, width = run.plan.sizes[3]
    for top, bottom in bands(height, run.plan.bands["pool"]):
        feature = stage_rows(run, backbone, 3, top, bottom)
        first, second = module.halves(feature.flatten(1, 2))
        share = second.sum(1).to("cpu", torch.float64) / (height * width)
        maximum = first.amax(1) if top == 0 else torch.maximum(maximum, first.amax(1))
        mean = share if top == 0 else mean + share
        run.count("pool", bottom - top)
    return module.tokens(maximum, mean.to(maximum))


def _neck(run: Context, backbone: VSSD, neck: ConcatNeck | TopDownNeck) -> Stream:
    sizes, dtype = run.plan.sizes, run.like.dtype

    def lateral(i: int, top: int, bottom: int) -> Tensor:
        return apply(neck.lateral[i], stage_rows(run, backbone, i, top, bottom))

    def beside(top: int, bottom: int) -> Tensor:
        deeper = [
            BandResize(sizes[i], sizes[0], dtype).pull(functools.partial(lateral, i), top, bottom) for i in (1, 2, 3)
        ]
        return torch.cat([lateral(0, top, bottom), *deeper], dim=-1)

    def summed(i: int, top: int, bottom: int) -> Tensor:
        x = lateral(i, top, bottom)
        if i == 3:
            return x
        return x + BandResize(sizes[i + 1], sizes[i], dtype).pull(functools.partial(summed, i + 1), top, bottom)

    spans = bands(sizes[0][0], run.plan.bands["neck"])
    if isinstance(neck, ConcatNeck):
        yield from ((apply(neck.mix, beside(*span)),) for span in spans)
    else:
        yield from slide(((summed(0, *span),) for span in spans), convolution(neck.mix))
    for i in range(4):
        run.close(f"stage{i}")


def _interact(run: Context, head: OMPHead, tokens: Tensor, pixels: Stream) -> Tensor:
    """The refined class tokens (1, classes, dim); the refined pixels are left in the map "pixels"."""
    sweep = "neck"
    for i, layer in enumerate(head.layers):
        assert isinstance(layer, TwoWayLayer)
        tokens = layer.norm1(tokens + layer.self_attention(tokens, tokens))
        tokens = layer.norm2(tokens + _attend(run, layer.tokens_to_pixels, tokens, pixels, sweep))
        tokens = layer.norm3(tokens + layer.mlp(tokens))
        sweep = f"layer{i}"
        centre = head.centre if i == len(head.layers) - 1 else None
        pixels = _updated(layer, run.stream("pixels", sweep), tokens, centre)
    return head.final_norm(tokens + _attend(run, head.final_attention, tokens, pixels, sweep))


def _attend(run: Context, attention: Attention, tokens: Tensor, pixels: Stream, sweep: str) -> Tensor:
    """What the tokens see in the pixels, which are stored as they pass."""
    streamed = StreamedAttention(attention, tokens)

    def watched() -> Stream:
        for (x,) in pixels:
            streamed.add(x)
            yield (x,)

    run.fill("pixels", watched(), sweep)
    return streamed.result()


def _updated(layer: TwoWayLayer, pixels: Stream, tokens: Tensor, centre: nn.Module | None) -> Stream:
    for (x,) in pixels:
        flat = x.flatten(1, 2)  # (1, L, dim)
        refined = layer.norm4(flat + layer.pixels_to_tokens(flat, tokens)).view(x.shape)
        yield (refined if centre is None else apply(centre, refined),)


def _matched(run: Context, head: OMPHead, prototypes: Tensor, shuffle: int) -> Stream:
    """Logits at the descriptors' stride, (1, rows, W, classes)."""
    for (x,) in run.stream("pixels", "match"):
        descriptors = functional.pixel_shuffle(to_channels_first(x), shuffle)
        yield (to_channels_last(match(descriptors, prototypes).amax(2) * head.scale()),)
        run.count("match", x.shape[1])
