"""Any model, made fast for evaluation."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from crispseg.errors import UserError
from crispseg.fused.backbone import FusedVSSD
from crispseg.fused.convolutions import prepare_convolutions
from crispseg.fused.fold import fold_batchnorms
from crispseg.fused.graphs import GraphCache
from crispseg.fused.head import FusedHead
from crispseg.fused.side_stream import Aside
from crispseg.models.base import SegmentationModel
from crispseg.models.crisp import CRISP
from crispseg.models.upernet import UPerNet
from crispseg.ops.common.precision import widened
from crispseg.ops.maps.resizing import upsample
from crispseg.threads import one_thread

_PRECISIONS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class FusedCRISP(nn.Module):
    def __init__(self, model: CRISP, dtype: torch.dtype) -> None:
        super().__init__()
        self.backbone = FusedVSSD(model.backbone, dtype)
        self.head = FusedHead(model.head, dtype)
        self.aside = Aside()

    def forward(self, image: Tensor) -> Tensor:
        """The first tokens are made aside, while the neck is at work."""
        norms: list[Any] = list(self.backbone.norms)
        *earlier, last = self.backbone.maps(image)
        deepest = norms[-1](last)
        tokens = self.aside(self.head.first_tokens, deepest)
        x = self.head.neck(earlier, norms[:-1], deepest)
        scores = self.head(x, *tokens.get())
        finer = 2 if self.head.quarters == 4 else 1  # descriptors along a pixel's side
        return upsample(scores, (finer * x.shape[1], finer * x.shape[2]), image.shape[-2:], quarters=finer == 2)


class Cast(nn.Module):
    """A model of any kind, channels last, its input cast."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        prepare_convolutions(model)
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
        self.normalises = model.normalises
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
    with torch.no_grad(), one_thread():
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
