"""The OMP head's necks for evaluation: the backbone's maps (B, h, w, C) to the pixel map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from crispseg.fused.layers import FusedNorm, Packed, Product, Ready, channels_last
from crispseg.models.omp import ConcatNeck, TopDownNeck
from crispseg.ops.cpu import onednn
from crispseg.ops.cpu.winograd import Frame, Winograd, same_convolution
from crispseg.ops.maps.convolution import convolve
from crispseg.ops.maps.normalize import norm_relu_add
from crispseg.ops.maps.resizing import resize_add, resized


class FusedTopDown(Packed, Ready):
    """From the deepest map up, each step one kernel that takes a stage's map as the backbone left it."""

    weight: Tensor
    bias: Tensor

    def __init__(self, neck: TopDownNeck, order: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.laterals = nn.ModuleList(Product.of(layer.conv, dtype, relu=True) for layer in neck.lateral)
        mix = neck.mix.conv
        assert mix.bias is not None
        self.keep(dtype, weight=channels_last(mix.weight[order]), bias=mix.bias[order])

    def make_ready(self) -> Winograd | onednn.Convolution:
        return same_convolution(self.weight, self.bias, relu=True)

    def forward(self, earlier: Sequence[Tensor], norms: Sequence[FusedNorm], deepest: Tensor) -> Tensor:
        """Maps before their norms, those norms, and the deepest map after its own."""
        *laterals, last = self.laterals
        x = last(deepest)
        if onednn.applies(x):
            return self._by_onednn(earlier, norms, x)
        for stage, norm, lateral in zip(reversed(earlier), reversed(norms), reversed(laterals), strict=True):
            x = norm_relu_add(stage, *norm.packed(), lateral.weight, lateral.bias, x)  # type: ignore[arg-type]
        return convolve(x, self.weight, self.bias, relu=True)

    def _by_onednn(self, earlier: Sequence[Tensor], norms: Sequence[FusedNorm], x: Tensor) -> Tensor:
        """The same; the last sum is written where the convolution wants its map."""
        laterals = list(self.laterals)[:-1]
        finest, *others = (lateral(norm(stage)) for lateral, norm, stage in zip(laterals, norms, earlier, strict=True))
        for finer in reversed(others):
            x = resize_add(finer, x)
        convolution = self.ready()
        if not isinstance(convolution, Winograd):
            return convolution(resize_add(finest, x))
        frame = Frame.of(finest, finest.shape)
        torch.add(finest, resized(x, finest.shape[1:3]), out=frame.inside)
        return convolution.framed(frame)


class FusedConcat(nn.Module):
    """The mixture of the concatenated maps is a sum over the stages, each with its own 1x1 product."""

    def __init__(self, neck: ConcatNeck, order: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        laterals: list[Any] = list(neck.lateral)
        parts = neck.mix.weight.flatten(1)[order].chunk(len(laterals), dim=1)
        self.products = nn.ModuleList(
            Product(part @ layer.weight.flatten(1), part @ layer.bias, dtype)
            for part, layer in zip(parts, laterals, strict=True)
        )

    def forward(self, earlier: Sequence[Tensor], norms: Sequence[FusedNorm], deepest: Tensor) -> Tensor:
        """The mixed map at the size of the finest stage; `norms` are those of the backbone's outputs, applied here."""
        *products, last = self.products
        first, *others = (product(norm(x)) for product, norm, x in zip(products, norms, earlier, strict=True))
        for x in (*others, last(deepest)):
            first = resize_add(first, x)
        return first
