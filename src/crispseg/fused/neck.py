"""The OMP head's necks for evaluation: the backbone's maps (B, h, w, C) to the pixel map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crispseg.fused.layers import Packed, Product, Ready, channels_last
from crispseg.fused.stages import StageMaps
from crispseg.ops.cpu import onednn
from crispseg.ops.cpu.winograd import Frame, Winograd, same_convolution
from crispseg.ops.maps.convolution import convolve
from crispseg.ops.maps.normalize import norm_relu_add
from crispseg.ops.maps.resizing import resize_add, resized

if TYPE_CHECKING:
    from crispseg.models.omp import ConcatNeck, TopDownNeck


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

    def forward(self, stages: StageMaps, deepest: Tensor) -> Tensor:
        """The maps, and the deepest of them normalised."""
        *laterals, last = self.laterals
        x = last(deepest)
        if onednn.applies(x):
            return self._by_onednn(stages, x)
        for i, lateral in reversed(list(enumerate(laterals))):
            if stages.norms:
                norm = stages.norms[i].packed()
                x = norm_relu_add(stages.maps[i], norm, lateral.weight, lateral.bias, x)  # type: ignore[arg-type]
            else:
                x = resize_add(lateral(stages.maps[i]), x)
        return convolve(x, self.weight, self.bias, relu=True)

    def _by_onednn(self, stages: StageMaps, x: Tensor) -> Tensor:
        """The same; the last sum is written where the convolution wants its map."""
        finest, *others = (lateral(stages.normed(i)) for i, lateral in enumerate(list(self.laterals)[:-1]))
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

    def forward(self, stages: StageMaps, deepest: Tensor) -> Tensor:
        """The mixed map at the size of the finest stage."""
        *products, last = self.products
        first, *others = (product(stages.normed(i)) for i, product in enumerate(products))
        for x in (*others, last(deepest)):
            first = resize_add(first, x)
        return first
