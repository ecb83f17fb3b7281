"""What is exported: raw pixel values in, scores or class ids out, all of it in one module."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from crispseg.errors import UserError
from crispseg.fused.fold import fold_batchnorms
from crispseg.models.base import SegmentationModel
from crispseg.predict.evaluate import check_card

Head = Literal["logits", "softmax", "argmax"]
HEADS: tuple[Head, ...] = ("logits", "softmax", "argmax")


class Deployed(nn.Module):
    """Pixels (N, bands, H, W) as they stand in the file, float32 -> logits or probabilities (N, classes, H, W) in
    float32, or class ids (N, H, W) in uint8. Normalisation and the card's temperature are inside."""

    def __init__(self, network: nn.Module, model: SegmentationModel, head: Head, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.head, self.dtype = network, head, dtype
        self.temperature = model.info.temperature
        self.normalise = model.info.normalisation()

    def forward(self, image: Tensor) -> Tensor:
        x = self.normalise(image)
        logits = self.network(x if self.dtype == torch.float32 else x.to(self.dtype)).float()
        if self.temperature != 1.0:
            logits = logits / self.temperature
        if self.head == "softmax":
            return logits.softmax(1)
        return logits.argmax(1).to(torch.uint8) if self.head == "argmax" else logits


def deploy(model: SegmentationModel, head: Head = "logits", dtype: torch.dtype = torch.float32) -> Deployed:
    """A copy of the model on the CPU, ready to be captured; its BatchNorms are folded into the convolutions."""
    check_card(model)
    if head == "argmax" and model.num_classes > 255:
        raise UserError(f"class ids are bytes, and model {model.name!r} has {model.num_classes} classes")
    whole = copy.deepcopy(model).to("cpu", torch.float64).eval().requires_grad_(False)  # folding rounds nothing
    fold_batchnorms(whole, model.in_channels)
    return Deployed(whole.to(dtype), model, head, dtype).eval()
