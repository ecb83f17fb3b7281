"""Maps with their channels first, (B, C, H, W), and last, (B, H, W, C): views of the same numbers."""

from __future__ import annotations

from torch import Tensor


def to_channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)  # (B, C, H, W) -> (B, H, W, C)


def to_channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)  # (B, H, W, C) -> (B, C, H, W)


def as_matrix(weight: Tensor) -> Tensor:
    """(out, in, 1, 1) -> (out, in), a view whose gradient comes back with the strides of a channels-last weight: DDP
    warns of others, those of axes of length one among them."""
    return to_channels_last(weight).flatten(1)
