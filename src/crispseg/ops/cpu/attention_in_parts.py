"""Attention between few tokens and many pixels (see `infer/pixel_attention.py`) part by part, on a CPU.

For inference only. A part of the image is small enough for the cache: it is read from memory once, updated by what
its pixels get from the tokens, and read by the tokens' next queries at once. The softmax over all pixels is put
together from the parts', each of which subtracts its own maximum, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.ops.common.norm import Norm
from crispseg.ops.common.precision import widened
from crispseg.ops.cpu import onednn

_NUMBERS = 2**20  # of a part: 4 MB

Parts = Sequence[Tensor]  # (n, D) each: an image's pixels


class Writing(NamedTuple):
    """What pixels get from tokens: the arguments of `pixel_attention.pixels_attend_tokens`."""

    keys: Tensor
    added: Tensor
    values: Tensor
    bias: Tensor
    norm: Norm

    def of(self, image: int) -> Writing:
        return self._replace(keys=self.keys[image], added=self.added[image], values=self.values[image])


class _Sums(NamedTuple):
    """Of one part, for each query: the largest score, and sums of weights and of weighted pixels relative to it."""

    largest: Tensor
    weights: Tensor
    pixels: Tensor


def split(pixels: Tensor) -> list[Parts]:
    """Of each image of pixels (B, L, D)."""
    return [image.split(max(1, _NUMBERS // pixels.shape[2])) for image in pixels]


def read(images: Sequence[Parts], queries: Tensor, projection: Tensor) -> Tensor:
    """As `pixel_attention.read_pixels`."""
    sums = [[_read(part, q.flatten(0, 1)) for part in parts] for parts, q in zip(images, queries, strict=True)]
    return _joined(sums, queries, projection)


def write_and_read(
    images: Sequence[Parts], writing: Writing, queries: Tensor, projection: Tensor
) -> tuple[list[Parts], Tensor]:
    """As `pixel_attention.pixels_attend_tokens`, and `read` of its result. The pixels given are overwritten."""
    written: list[Parts] = []
    sums = []
    for image, (parts, q) in enumerate(zip(images, queries, strict=True)):
        update, q = _Update.of(writing.of(image)), q.flatten(0, 1)
        both = [(new := update(part), _read(new, q)) for part in parts]
        written.append([new for new, _ in both])
        sums.append([found for _, found in both])
    return written, _joined(sums, queries, projection)


class _Update(NamedTuple):
    keys: Tensor  # (T * heads, D)
    added: Tensor  # (T * heads, 1)
    values: Tensor  # (D, T * heads)
    tokens: int
    norm: Norm

    @classmethod
    def of(cls, writing: Writing) -> _Update:
        """A head's weights add up to one, so what is added to all of its values is added to each pixel: the bias."""
        values = torch.cat([writing.values[:, :1] + writing.bias, writing.values[:, 1:]], dim=1)
        keys, added = writing.keys.flatten(0, 1), writing.added.reshape(-1, 1)
        return cls(keys, added, values.flatten(0, 1).t().contiguous(), len(writing.keys), writing.norm)

    def __call__(self, part: Tensor) -> Tensor:
        # Pixels come last, so that the softmax over tokens runs along them: they are given as the product's weights.
        scores = onednn.linear(self.keys, part).add_(self.added)  # (T * heads, n)
        weights = scores.view(self.tokens, -1).softmax(0).view_as(scores).t()
        return self.norm(onednn.linear_added_to(part, weights, self.values))


def _read(part: Tensor, queries: Tensor) -> _Sums:
    scores = onednn.linear(queries, part)  # (T * heads, n): as above
    largest = scores.amax(1)
    weights = scores.sub_(largest[:, None]).exp_()
    return _Sums(*map(widened, (largest, weights.sum(1), onednn.linear(weights, part.t()))))


def _joined(images: Sequence[Sequence[_Sums]], queries: Tensor, projection: Tensor) -> Tensor:
    means = torch.stack([_mean(parts) for parts in images]).to(queries.dtype).view(queries.shape)
    return torch.einsum("bthd,hwd->bthw", means, projection).flatten(2)


def _mean(parts: Sequence[_Sums]) -> Tensor:
    largest, weights, pixels = (torch.stack(tensors) for tensors in zip(*parts, strict=True))
    share = (largest - largest.amax(0)).exp_()  # (parts, T * heads)
    total = (share * weights).sum(0)
    return (share[..., None] * pixels).sum(0) / total[:, None]


def best_cosines(images: Sequence[Parts], prototypes: Tensor, scale: float) -> Tensor:
    """As `matching.best_cosines`, of pixels that each have one or more descriptors side by side; in float32."""
    classes, width = prototypes.shape[1], prototypes.shape[3]
    normal = functional.normalize(prototypes, dim=-1).flatten(1, 2)  # (B, classes * K, d)
    rows = [
        torch.cat([_best(part.view(-1, width), p, classes) for part in parts], dim=1)
        for parts, p in zip(images, normal, strict=True)
    ]
    return torch.stack(rows).mul_(scale)


def _best(descriptors: Tensor, prototypes: Tensor, classes: int) -> Tensor:
    products = onednn.linear(prototypes, descriptors)  # (classes * K, n)
    best = widened(products.unflatten(0, (classes, -1)).amax(1))
    return best.div_(torch.linalg.vector_norm(descriptors, dim=-1, dtype=best.dtype).clamp_(min=1e-12))
