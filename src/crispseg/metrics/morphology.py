"""Exact Euclidean neighbourhoods of label maps by shifting and OR-ing bytes, without a distance map.

A byte carries one bit for each of eight classes, so one dilation serves eight classes at once, on any device,
in a time that grows with the radius and not with its square.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor


def disk_or(bits: Tensor, radius: float) -> Tensor:
    """For each pixel of `bits` (H, W) uint8 the OR over all pixels at Euclidean distance <= radius."""
    height = bits.shape[0]
    limit = math.floor(radius * radius + 1e-9)  # squared distances of pixels are integers
    result = torch.zeros_like(bits)
    spread, half = bits.clone(), 0  # spread: OR over the row's neighbours up to `half` columns away
    for dy in range(math.isqrt(limit), -1, -1):
        while half < math.isqrt(limit - dy * dy):
            half += 1
            spread[:, half:] |= bits[:, :-half]
            spread[:, :-half] |= bits[:, half:]
        result[dy:] |= spread[: max(height - dy, 0)]
        result[: max(height - dy, 0)] |= spread[dy:]
    return result


def class_bits(labels: Tensor, num_classes: int) -> Iterator[Tensor]:
    """Planes (H, W) uint8, each for eight classes: the bit of the pixel's class, 0 if not one of them.

    `labels` is int64 with `num_classes` at ignored pixels, whose bits are 0 in every plane.
    """
    for first in range(0, num_classes, 8):
        table = torch.zeros(num_classes + 1, dtype=torch.uint8)
        group = torch.arange(first, min(first + 8, num_classes))
        table[group] = (1 << (group - first)).to(torch.uint8)
        yield table.to(labels.device)[labels]


def contour(labels: Tensor) -> Tensor:
    """Pixels (H, W) bool with a 4-neighbour of another label. Beyond the image border there is no neighbour."""
    result = torch.zeros_like(labels, dtype=torch.bool)
    down, right = labels[1:] != labels[:-1], labels[:, 1:] != labels[:, :-1]
    result[1:] |= down
    result[:-1] |= down
    result[:, 1:] |= right
    result[:, :-1] |= right
    return result


def near_other_class(planes: list[Tensor], width: float) -> Tensor:
    """Pixels (H, W) bool that have a class and, at distance <= width, a pixel of another one.

    Restricted to one class this is that class's inner band; over all classes it is the band on both sides of
    every boundary. `planes` are `class_bits`; an ignored pixel is no other class.
    """
    near = torch.zeros_like(planes[0], dtype=torch.bool)
    valid = torch.zeros_like(near)
    for own in planes:
        near |= disk_or(own, width) != own
        valid |= own != 0
    return near & valid


def clear_of(mask: Tensor, radius: float) -> Tensor:
    """Pixels (H, W) bool with no pixel of `mask` at distance <= radius."""
    if not mask.any():
        return torch.ones_like(mask)
    return disk_or(mask.to(torch.uint8), radius) == 0
