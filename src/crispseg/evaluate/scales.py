"""A model that looks at every window in several sizes."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crispseg.models.base import SegmentationModel


class AtScales(SegmentationModel):
    """Shows the image to `model` at each scale, and averages the probabilities at the image's own size.

    What it returns are logarithms of probabilities: logits like any other model's, of temperature 1, as the card's
    is for the logits of one view.
    """

    def __init__(self, model: SegmentationModel, scales: tuple[float, ...]) -> None:
        super().__init__()
        self.model, self.scales = model, scales
        self.name, self.info = model.name, dataclasses.replace(model.info, temperature=1.0)
        self.temperature = model.info.temperature
        self.num_classes, self.in_channels = model.num_classes, model.in_channels
        self.normalises = model.normalises

    def fused(self, precision: torch.dtype | None = None, graphs: bool = True) -> Any:
        """The views are made in float32, as here; what looks at them is fused."""
        return AtScales(self.model.fused(precision, graphs), self.scales)  # type: ignore[arg-type]

    def forward(self, image: Tensor) -> Tensor:
        size = (image.shape[-2], image.shape[-1])
        views = [self._probabilities(image, size, scale) for scale in self.scales]
        return torch.stack(views).mean(0).log()

    def _probabilities(self, image: Tensor, size: tuple[int, int], scale: float) -> Tensor:
        shown = (max(1, round(size[0] * scale)), max(1, round(size[1] * scale)))
        logits = self.model(_resized(image, shown)).float() / self.temperature
        return _resized(logits.softmax(1), size)


def _resized(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear, with a wider filter when shrinking so that nothing aliases."""
    if x.shape[-2:] == size:
        return x
    return functional.interpolate(x, size=size, mode="bilinear", align_corners=False, antialias=True)
