"""UPerHead over a scene in bands."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.exact.context import Context
from crispseg.exact.parts import Features, Kept, Pass, full_size
from crispseg.exact.resize import BandResize, Size
from crispseg.exact.stream import Stream, apply, bands, convolution, slide
from crispseg.layout import to_channels_first

if TYPE_CHECKING:
    from crispseg.models.upernet import UPerHead


class StreamedUPer:
    def __init__(self, head: UPerHead) -> None:
        self.head = head

    def passes(self, sizes: Sequence[Size]) -> Iterator[Pass]:
        bottleneck, classes = self.head.bottleneck.conv, self.head.classify.out_channels
        deepest, channels = bottleneck.in_channels, bottleneck.out_channels
        laterals: list[Any] = list(self.head.lateral)
        yield Pass("pool", sizes[3], 4 * deepest, deepest)
        yield Pass("bottleneck", sizes[3], 4 * deepest, 9 * deepest * channels)
        lateral = sum(layer.conv.in_channels / 4**i for i, layer in enumerate(laterals)) * channels
        smooth, fuse = 1.3 * 9 * channels * channels, 4 * 9 * channels * channels
        yield Pass("pyramid", sizes[0], 26 * channels + full_size(classes), lateral + smooth + fuse)

    def maps(self, sizes: Sequence[Size]) -> Iterator[Kept]:
        yield Kept("bottleneck", sizes[3], self.head.bottleneck.conv.out_channels, sweeps=2)

    def run(self, run: Context, features: Features) -> Stream:
        head, pooled = self.head, _pooled(run, self.head, features)
        run.open("bottleneck")
        run.fill("bottleneck", slide(_context(run, features, pooled), convolution(head.bottleneck)), "bottleneck")
        scene = (run.plan.height, run.plan.width)
        return BandResize(run.plan.sizes[0], scene, run.like.dtype).stream(_logits(run, head, features))


def _pooled(run: Context, head: UPerHead, features: Features) -> list[Tensor]:
    """Stage 4 averaged over s x s bins for every scale s, each then convolved: (1, s, s, channels)."""
    height = run.plan.sizes[3][0]
    sums = [
        run.like.new_zeros(1, run.plan.maps["stage3"].channels, s, s, dtype=torch.float64, device="cpu")
        for s in head.scales
    ]
    for top, bottom in bands(height, run.plan.bands["pool"]):
        x = to_channels_first(features.rows(3, top, bottom))
        for s, total in zip(head.scales, sums, strict=True):
            columns = functional.adaptive_avg_pool2d(x, (bottom - top, s)).to("cpu", torch.float64)
            for k in range(s):
                first, last = k * height // s, -(-(k + 1) * height // s)  # the bin's rows; bins may overlap
                inside = columns[:, :, max(first - top, 0) : max(last - top, 0)]
                total[:, :, k] += inside.sum(2) / (last - first)
        run.count("pool", bottom - top)
    return [conv(total.to(run.like)).permute(0, 2, 3, 1) for conv, total in zip(head.pooled, sums, strict=True)]


def _context(run: Context, features: Features, pooled: list[Tensor]) -> Stream:
    """Stage 4 beside the pooled maps at its size."""
    size = run.plan.sizes[3]
    for top, bottom in bands(size[0], run.plan.bands["bottleneck"]):
        around = [BandResize((x.shape[1], x.shape[2]), size, x.dtype).rows(x, 0, top, bottom) for x in pooled]
        yield (torch.cat([features.rows(3, top, bottom), *around], dim=-1),)


def _logits(run: Context, head: UPerHead, features: Features) -> Stream:
    """Logits at stride 4."""
    spans = bands(run.plan.sizes[0][0], run.plan.bands["pyramid"])
    fused = slide(((_beside(run, head, features, *span),) for span in spans), convolution(head.fuse))
    for (x,) in fused:
        yield (apply(head.classify, x),)
        run.count("pyramid", x.shape[1])


def _beside(run: Context, head: UPerHead, features: Features, top: int, bottom: int) -> Tensor:
    """Rows of all four pyramid maps at stride 4, beside each other."""
    sizes, dtype = run.plan.sizes, run.like.dtype

    def summed(i: int, top: int, bottom: int) -> Tensor:
        if i == 3:
            return run.read("bottleneck", top, bottom)
        x = apply(head.lateral[i], features.rows(i, top, bottom))
        return x + BandResize(sizes[i + 1], sizes[i], dtype).pull(functools.partial(summed, i + 1), top, bottom)

    def smooth(i: int, top: int, bottom: int) -> Tensor:
        if i == 3:
            return summed(3, top, bottom)
        first = max(0, top - 1)
        x = apply(head.smooth[i], summed(i, first, min(bottom + 1, sizes[i][0])))
        return x[:, top - first : bottom - first]

    deeper = [BandResize(sizes[i], sizes[0], dtype).pull(functools.partial(smooth, i), top, bottom) for i in (1, 2, 3)]
    return torch.cat([smooth(0, top, bottom), *deeper], dim=-1)
