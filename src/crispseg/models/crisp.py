"""CRISP: the calibrated VSSD backbone with the Orthogonal Multi-Prototype head."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional

from crispseg import config as configs
from crispseg.models.base import Output, SegmentationModel
from crispseg.models.omp import OMPConfig, OMPHead
from crispseg.models.options import split_options
from crispseg.models.registry import register
from crispseg.models.vssd import VSSD, VSSDConfig, backbone_config
from crispseg.ops.maps.resizing import upsample


class CRISP(SegmentationModel):
    def __init__(self, backbone: VSSDConfig, head: OMPConfig, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.backbone = VSSD(backbone, in_channels)
        self.head = OMPHead(self.backbone.widths, num_classes, head)
        self.matches_softly = head.matching == "lse"

    def forward(self, image: Tensor) -> Tensor | Output:
        matched = self.head(self.backbone(image))
        logits = upsample(matched.logits, image.shape[-2:])
        return Output(logits, prototypes=matched.prototypes, matches=matched.matches) if self.training else logits

    def at_progress(self, progress: float) -> None:
        self.head.at_progress(progress)

    def allocate(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and per pixel and class the index of the winning sub-prototype (B, classes, H, W)."""
        matched = self.head(self.backbone(image), allocation=True)
        size = image.shape[-2:]
        allocation = functional.interpolate(matched.allocation.float(), size=size, mode="nearest-exact")
        return upsample(matched.logits, size), allocation.long()


def _build(backbone: str, defaults: dict[str, Any], num_classes: int, in_channels: int, **options: Any) -> CRISP:
    backbone_options, head_options = split_options(options, VSSDConfig, OMPConfig)
    head = configs.build(OMPConfig, defaults | head_options)
    return CRISP(backbone_config(backbone, **backbone_options), head, num_classes, in_channels)


_NANO_HEAD = {"dim": 128, "mlp_dim": 256}
_SUMMARY = "CRISP: calibrated VSSD with the multi-prototype head"

for _size in ("nano", "micro", "tiny", "small", "base"):
    register(f"crisp_{_size}", partial(_build, f"vssd_{_size}", _NANO_HEAD if _size == "nano" else {}), _SUMMARY)
