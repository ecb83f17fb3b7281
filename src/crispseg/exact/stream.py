"""Maps as streams of rows, and convolutions over such streams.

A stream yields bands of a map from top to bottom, each a tuple of tensors (1, rows, W, C) that share their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from crispseg.layout import to_channels_first, to_channels_last

Parts = tuple[Tensor, ...]
Stream = Iterator[Parts]


def slide(stream: Stream, function: Callable[..., Parts], radius: int = 1, stride: int = 1) -> Stream:
    """Apply a function that looks `radius` rows up and down, as if to the whole map at once.

    Output row j may depend on the input rows stride * j - radius ... stride * j + radius, and `function` pads with
    zeros at the edges it sees: at the map's own edges that is wanted, elsewhere those rows are cut off. Each row is
    read once and given out once; between bands only the rows that the next output needs are kept.
    """
    behind = -(-radius // stride)  # output rows before the next one whose input must be kept
    window: Parts = ()
    start = end = done = 0  # input rows start ... end - 1 are in the window; `done` output rows are given out
    for parts in stream:
        window = _join(window, parts)
        end += parts[0].shape[1]
        del parts
        ready = (end - 1 - radius) // stride + 1
        if ready > done:
            result = _cut(function(*window), done - start // stride, ready - start // stride)
            done = ready
            keep = max(0, stride * min(done - behind, end // stride))
            # cloned, or the kept rows would hold on to the memory of the whole window
            window = tuple(x[:, keep - start :].clone() for x in window)
            start = keep
            yield result
    total = -(-end // stride)
    if total > done:
        yield _cut(function(*window), done - start // stride, total - start // stride)


def apply(module: nn.Module, x: Tensor) -> Tensor:
    """A module for maps (B, C, H, W) applied to a channels-last band."""
    return to_channels_last(module(to_channels_first(x)))


def convolution(module: nn.Module) -> Callable[[Tensor], Parts]:
    """A module for maps (B, C, H, W) as a function that `slide` takes."""
    return lambda x: (apply(module, x),)


def bands(height: int, rows: int) -> Iterator[tuple[int, int]]:
    """(top, bottom) of consecutive bands that cover `height` rows."""
    for top in range(0, height, rows):
        yield top, min(top + rows, height)


def _join(kept: Parts, new: Parts) -> Parts:
    return tuple(torch.cat(pair, dim=1) for pair in zip(kept, new, strict=True)) if kept else new


def _cut(parts: Parts, top: int, bottom: int) -> Parts:
    return tuple(x[:, top:bottom] for x in parts)
