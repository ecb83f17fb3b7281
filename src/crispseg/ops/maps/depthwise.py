"""Depthwise 3x3 convolution of channels-last maps with bias, activation and residual.

Maps are (B, H, W, C); they may be views into wider maps, which are not copied as long as their channels lie side by
side. Kernels compute in float32 and return x's dtype; weights may be of another precision than x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.errors import UserError, unknown
from crispseg.ops.dispatch import FLOATS, operator

Activation = Literal["none", "silu", "relu"]

_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "none": lambda x, inplace: x,
    "silu": functional.silu,
    "relu": functional.relu,
}


def check(activation: str, stride: int, residual: bool) -> None:
    if activation not in _ACTIVATIONS:
        raise unknown("activation", activation, _ACTIVATIONS)
    if stride not in (1, 2) or (residual and stride != 1):
        raise UserError(f"a depthwise convolution has stride 1, or 2 without residual; got {stride}, {residual=}")


@operator("depthwise3x3", dtypes=FLOATS, of=1)
def depthwise3x3(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: bool = False,
    activation: Activation = "none",
    stride: int = 1,
) -> Tensor:
    """act(conv(x) + bias), plus x if `residual`: (B, H, W, C) -> (B, H', W', C), H' = ceil(H / stride).

    weight: (C, 1, 3, 3), padded by zeros outside the map; with its channels side by side in memory (see `packed`) the
    kernels load it faster.
    """
    check(activation, stride, residual)
    # torch would take a view into a wider map for channels first: slow here, and in whatever reads the result.
    channels_first = x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    y = functional.conv2d(
        channels_first,
        weight.to(x.dtype),
        None if bias is None else bias.to(x.dtype),
        stride,
        padding=1,
        groups=x.shape[3],
    )
    y = _ACTIVATIONS[activation](y.permute(0, 2, 3, 1), inplace=not torch.is_grad_enabled())
    return x + y if residual else y


def packed(weight: Tensor) -> Tensor:
    """The same weight (C, 1, 3, 3), stored with its channels side by side."""
    channels = weight.shape[0]
    return weight.reshape(channels, 9).t().contiguous().t().view(channels, 1, 3, 3)
