"""The multi-prototype head over a scene in bands.

The pixel map is kept (its neck is too dear to repeat) and swept once per layer of two-way attention: a sweep updates
the pixels by the previous layer's tokens and lets this layer's tokens attend them. The last sweep matches. The layers
are the head's own: they are given pixels that come in bands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crispseg.exact.attention import StreamedAttention
from crispseg.exact.context import Context
from crispseg.exact.parts import Features, Kept, Pass, full_size
from crispseg.exact.resize import BandResize, Size
from crispseg.exact.stream import Stream, apply, bands, convolution, slide
from crispseg.layout import to_channels_first, to_channels_last

if TYPE_CHECKING:
    from crispseg.models.omp import Attention, ConcatNeck, DynamicTokens, OMPHead, TopDownNeck


class StreamedOMP:
    def __init__(self, head: OMPHead) -> None:
        self.head = head

    def passes(self, sizes: Sequence[Size]) -> Iterator[Pass]:
        head, config, dim = self.head, self.head.config, self.head.config.dim
        classes, widths = head.num_classes, head.widths
        lateral = sum(c / 4**i for i, c in enumerate(widths)) * dim
        scores = 3 * config.attention_heads * classes
        yield Pass("pool", sizes[3], 2 * widths[-1] + 4 * dim, widths[-1] * dim)
        floats, mix = (16, 4) if config.neck == "concat" else (10, 9)
        yield Pass("neck", sizes[0], floats * dim + scores, lateral + mix * dim * dim + dim * dim)
        for i in range(len(head.layers)):
            yield Pass(f"layer{i}", sizes[0], 8 * dim + scores, 2 * dim * dim)
        matched = classes * config.prototypes
        yield Pass("match", sizes[0], 5 * dim + 8 * matched + full_size(classes), dim * matched)

    def maps(self, sizes: Sequence[Size]) -> Iterator[Kept]:
        yield Kept("pixels", sizes[0], self.head.config.dim, sweeps=2 * len(self.head.layers) + 2)

    def run(self, run: Context, features: Features) -> Stream:
        head = self.head
        tokens = _class_tokens(run, features, head.tokens)
        run.open("pixels")
        tokens, _ = head.refine(tokens, BandedPixels(run, _closing(head.neck.in_bands(run, features), features)))
        prototypes = head.prototypes(tokens)
        height, width = run.plan.sizes[0]
        finer = head.descriptors_along_a_side
        full = BandResize((finer * height, finer * width), (run.plan.height, run.plan.width), prototypes.dtype)
        return full.stream(self._matched(run, prototypes))

    def _matched(self, run: Context, prototypes: Tensor) -> Stream:
        """Logits at the descriptors' stride, (1, rows, W, classes)."""
        for (x,) in run.stream("pixels", "match"):
            logits, _ = self.head.scores(self.head.descriptors(to_channels_first(x)), prototypes)
            yield (to_channels_last(logits),)
            run.count("match", x.shape[1])


class BandedPixels:
    """`omp.Pixels` that come in bands: stored when they are read, changed in the sweep that reads them next."""

    def __init__(self, run: Context, rows: Stream, sweep: str = "neck", sweeps: int = 0) -> None:
        self.context, self.rows, self.sweep, self.sweeps = run, rows, sweep, sweeps
        self.stored = False

    def read(self, attention: Attention, tokens: Tensor) -> Tensor:
        streamed = StreamedAttention(attention, tokens)

        def watched() -> Stream:
            for (x,) in self.rows:
                streamed.add(x)
                yield (x,)

        self.context.fill("pixels", watched(), self.sweep)
        self.stored = True
        return streamed.result()

    def changed(self, function: Callable[[Tensor], Tensor]) -> BandedPixels:
        sweep, sweeps, rows = self.sweep, self.sweeps, self.rows
        if self.stored:
            sweep, sweeps = f"layer{sweeps}", sweeps + 1
            rows = self.context.stream("pixels", sweep)
        return BandedPixels(self.context, _applied(function, rows), sweep, sweeps)


def _applied(function: Callable[[Tensor], Tensor], rows: Stream) -> Stream:
    for (x,) in rows:
        yield (function(x.flatten(1, 2)).view(x.shape),)  # (1, L, dim)


def _class_tokens(run: Context, features: Features, module: DynamicTokens) -> Tensor:
    """`DynamicTokens` with its maximum and mean taken over bands."""
    maximum = mean = torch.empty(0)
    height, width = run.plan.sizes[3]
    for top, bottom in bands(height, run.plan.bands["pool"]):
        first, second = module.halves(features.rows(3, top, bottom).flatten(1, 2))
        share = second.sum(1).to("cpu", torch.float64) / (height * width)
        maximum = first.amax(1) if top == 0 else torch.maximum(maximum, first.amax(1))
        mean = share if top == 0 else mean + share
        run.count("pool", bottom - top)
    return module.tokens(maximum, mean.to(maximum))


def _closing(rows: Stream, features: Features) -> Stream:
    yield from rows
    features.close()


def concat_in_bands(neck: ConcatNeck, run: Context, features: Features) -> Stream:
    sizes, dtype = run.plan.sizes, run.like.dtype
    lateral = _laterals(neck, features)

    def beside(top: int, bottom: int) -> Tensor:
        deeper = [
            BandResize(sizes[i], sizes[0], dtype).pull(functools.partial(lateral, i), top, bottom) for i in (1, 2, 3)
        ]
        return torch.cat([lateral(0, top, bottom), *deeper], dim=-1)

    yield from ((apply(neck.mix, beside(*span)),) for span in bands(sizes[0][0], run.plan.bands["neck"]))


def top_down_in_bands(neck: TopDownNeck, run: Context, features: Features) -> Stream:
    sizes, dtype = run.plan.sizes, run.like.dtype
    lateral = _laterals(neck, features)

    def summed(i: int, top: int, bottom: int) -> Tensor:
        x = lateral(i, top, bottom)
        if i == 3:
            return x
        return x + BandResize(sizes[i + 1], sizes[i], dtype).pull(functools.partial(summed, i + 1), top, bottom)

    spans = bands(sizes[0][0], run.plan.bands["neck"])
    return slide(((summed(0, *span),) for span in spans), convolution(neck.mix))


def _laterals(neck: Any, features: Features) -> Callable[[int, int, int], Tensor]:
    return lambda i, top, bottom: apply(neck.lateral[i], features.rows(i, top, bottom))
