"""The baseline decoder: UPerHead (pyramid pooling and a feature pyramid), with an auxiliary FCN head for training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crispseg import config as configs
from crispseg.models.base import Output, SegmentationModel
from crispseg.models.layers import ConvNorm, resize
from crispseg.models.options import check_sizes, split_options
from crispseg.models.registry import register
from crispseg.models.vssd import VARIANTS, VSSD, VSSDConfig, backbone_config

if TYPE_CHECKING:
    from crispseg.exact.upernet import StreamedUPer


@dataclasses.dataclass(frozen=True)
class UPerConfig:
    channels: int = 512
    pool_scales: tuple[int, ...] = (1, 2, 3, 6)
    dropout: float = 0.1
    aux_channels: int = 256
    auxiliary: bool = True

    def __post_init__(self) -> None:
        check_sizes(channels=self.channels, pool_scales=self.pool_scales, aux_channels=self.aux_channels)
        configs.check_between({"dropout": self.dropout}, 0, 1)


class UPerHead(nn.Module):
    def __init__(self, widths: Sequence[int], num_classes: int, config: UPerConfig) -> None:
        super().__init__()
        channels, scales = config.channels, config.pool_scales
        self.scales = scales
        self.pooled = nn.ModuleList(ConvNorm(widths[-1], channels, 1) for _ in scales)
        self.bottleneck = ConvNorm(widths[-1] + len(scales) * channels, channels, 3)
        self.lateral = nn.ModuleList(ConvNorm(width, channels, 1) for width in widths[:-1])
        self.smooth = nn.ModuleList(ConvNorm(channels, channels, 3) for _ in widths[:-1])
        self.fuse = ConvNorm(len(widths) * channels, channels, 3)
        self.dropout = nn.Dropout2d(config.dropout)
        self.classify = nn.Conv2d(channels, num_classes, 1)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Four feature maps -> logits at stride 4."""
        maps = [lateral(x) for lateral, x in zip(self.lateral, features[:-1], strict=True)]
        maps.append(self.pool_pyramid(features[-1]))
        for i in range(len(maps) - 1, 0, -1):
            maps[i - 1] = maps[i - 1] + resize(maps[i], maps[i - 1].shape[-2:])
        maps[:-1] = [smooth(x) for smooth, x in zip(self.smooth, maps[:-1], strict=True)]
        size = features[0].shape[-2:]
        fused = self.fuse(torch.cat([maps[0], *(resize(x, size) for x in maps[1:])], dim=1))
        return self.classify(self.dropout(fused))

    def streamed(self) -> StreamedUPer:
        from crispseg.exact.upernet import StreamedUPer

        return StreamedUPer(self)

    def pool_pyramid(self, x: Tensor) -> Tensor:
        pyramid = [
            resize(conv(nn.functional.adaptive_avg_pool2d(x, scale)), x.shape[-2:])
            for conv, scale in zip(self.pooled, self.scales, strict=True)
        ]
        return self.bottleneck(torch.cat([x, *pyramid], dim=1))


class FCNHead(nn.Sequential):
    """One 3x3 convolution and a classifier, on one feature map; used in training only."""

    def __init__(self, width: int, num_classes: int, config: UPerConfig) -> None:
        super().__init__(
            ConvNorm(width, config.aux_channels, 3),
            nn.Dropout2d(config.dropout),
            nn.Conv2d(config.aux_channels, num_classes, 1),
        )


class UPerNet(SegmentationModel):
    """VSSD with UPerHead, and an FCN head on stage 2 while training."""

    training_only = ("auxiliary",)

    def __init__(self, backbone: VSSDConfig, head: UPerConfig, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.backbone = VSSD(backbone, in_channels)
        self.head = UPerHead(self.backbone.widths, num_classes, head)
        self.auxiliary = FCNHead(self.backbone.widths[1], num_classes, head) if head.auxiliary else None

    def forward(self, image: Tensor) -> Tensor | Output:
        features = self.backbone(image)
        size = image.shape[-2:]
        logits = resize(self.head(features), size)
        if not self.training:
            return logits
        aux = () if self.auxiliary is None else (resize(self.auxiliary(features[1]), size),)
        return Output(logits, aux)


def _build(backbone: str, defaults: dict[str, Any], num_classes: int, in_channels: int, **options: Any) -> UPerNet:
    backbone_options, head = split_options(defaults | options, VSSDConfig, UPerConfig)
    plain_vssd: dict[str, Any] = {"fusion": "raw", "dco": False}
    backbone_cfg = backbone_config(backbone, **plain_vssd | backbone_options)
    return UPerNet(backbone_cfg, configs.build(UPerConfig, head), num_classes, in_channels)


_NANO_HEAD = {"channels": 128, "aux_channels": 64}  # the published widths would be most of the model

for _name in VARIANTS:
    _defaults = _NANO_HEAD if _name == "vssd_nano" else {}
    register(f"{_name}_upernet", partial(_build, _name, _defaults), "plain VSSD with UPerHead, the paper's baseline")
