"""Any model, made fast for evaluation."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from crispseg.errors import UserError
from crispseg.fused.aside import Aside
from crispseg.fused.backbone import FusedVSSD
from crispseg.fused.fold import fold_batchnorms
from crispseg.fused.graphs import GraphCache
from crispseg.fused.head import FusedHead
from crispseg.models.base import SegmentationModel
from crispseg.models.crisp import CRISP
from crispseg.models.layers import resize
from crispseg.models.upernet import UPerNet
from crispseg.ops.spec import widened

_PRECISIONS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class FusedCRISP(nn.Module):
    """What the head makes of each stage's map is made aside, while the next stage is computed."""

    def __init__(self, model: CRISP, dtype: torch.dtype) -> None:
        super().__init__()
        self.backbone = FusedVSSD(model.backbone, dtype)
        self.head = FusedHead(model.head, dtype)
        self.aside = Aside()

    def forward(self, image: Tensor) -> Tensor:
        *earlier, last = range(len(self.backbone.norms))
        maps = self.backbone.maps(image)
        started = [self.aside(partial(self._enter, i), next(maps)) for i in earlier]
        feature = self.backbone.norms[last](next(maps))
        tokens = self.aside(self.head.first_tokens, feature)
        deepest = self.head.neck.enter(last, feature)
        x = self.head.neck.merge([*(later.get() for later in started), deepest])
        return resize(self.head(x, *tokens.get()), image.shape[-2:])

    def _enter(self, i: int, x: Tensor) -> Tensor:
        return self.head.neck.enter(i, self.backbone.norms[i](x))


class Cast(nn.Module):
    """A model of any kind, channels last, its input cast."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model.to(dtype=dtype, memory_format=torch.channels_last), dtype  # type: ignore[call-overload]

    def forward(self, image: Tensor) -> Tensor:
        return self.model(image.to(self.dtype, memory_format=torch.channels_last))


class Fused(nn.Module):
    """Image (B, bands, H, W) -> logits (B, classes, H, W), in float32 at least; for evaluation only.

    A snapshot of the model it was made from: what happens to that model's weights afterwards is not seen.
    """

    def __init__(self, network: nn.Module, model: SegmentationModel, graphs: bool) -> None:
        super().__init__()
        self.name, self.info = model.name, model.info
        self.num_classes, self.in_channels = model.num_classes, model.in_channels
        self.network = network.requires_grad_(False)
        self.graphs = GraphCache(self._compute) if graphs else None
        self.eval()

    def train(self, mode: bool = True) -> Fused:
        if mode:
            raise UserError("a fused model only evaluates; train the model it was made from and call fused() again")
        return super().train(False)

    def _apply(self, fn: Any, recurse: bool = True) -> Fused:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.graphs is not None:
            self.graphs = GraphCache(self._compute)  # the recorded ones read the weights where they were
        return self

    @torch.no_grad()
    def forward(self, image: Tensor) -> Tensor:
        if self.graphs is not None and image.is_cuda and not torch.cuda.is_current_stream_capturing():
            return self.graphs(image)
        return self._compute(image)

    @torch.no_grad()
    def _compute(self, image: Tensor) -> Tensor:
        with torch.autocast(image.device.type, enabled=False):
            return widened(self.network(image))


def fuse(model: SegmentationModel, precision: torch.dtype | None = None, graphs: bool = True) -> Fused:
    """See `SegmentationModel.fused`."""
    if model.training:
        raise UserError("this model is in training mode, and a fused one only evaluates; call eval() on it first")
    weight = next(model.parameters())
    dtype = precision or weight.dtype
    if dtype not in _PRECISIONS:
        raise UserError(f"a model cannot be fused in {dtype}; use torch.float32, torch.bfloat16 or torch.float16")
    whole = copy.deepcopy(model).to("cpu", torch.float64)  # so that folding rounds nothing
    with torch.no_grad():
        fold_batchnorms(whole, model.in_channels)
        network = _network(whole, dtype)
    return Fused(network.to(weight.device), model, graphs)


def _network(model: SegmentationModel, dtype: torch.dtype) -> nn.Module:
    if isinstance(model, CRISP):
        return FusedCRISP(model, dtype)
    if isinstance(model, UPerNet):
        backbone = FusedVSSD(model.backbone, dtype)
        model.backbone, model.auxiliary = nn.Identity(), None  # type: ignore[assignment]
        network = Cast(model, dtype)
        model.backbone = backbone  # type: ignore[assignment]
        return network
    return Cast(model, dtype)
