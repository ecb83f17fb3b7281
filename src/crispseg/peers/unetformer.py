"""UNetFormer (Wang et al., 2022): a ResNet-18 U-net whose decoder blocks mix window attention and convolutions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from crispseg.models.base import Output
from crispseg.peers.base import Peer, read_options
from crispseg.peers.encoders import resnet18
from crispseg.peers.global_local import AUTHORS_NAMES, GlobalLocalDecoder


@dataclasses.dataclass(frozen=True)
class UNetFormerConfig:
    dropout: float = 0.1  # before both classifiers


class UNetFormer(Peer):
    authors_names = AUTHORS_NAMES

    def __init__(self, num_classes: int, in_channels: int, options: UNetFormerConfig) -> None:
        super().__init__()
        self.backbone = resnet18(in_channels)
        self.decoder = GlobalLocalDecoder((64, 128, 256, 512), num_classes, options.dropout)

    def forward(self, x: Tensor) -> Tensor | Output:
        return self.decoder(self.backbone(x), (x.shape[-2], x.shape[-1]))


def build(num_classes: int, in_channels: int, options: Mapping[str, Any]) -> UNetFormer:
    return UNetFormer(num_classes, in_channels, read_options(UNetFormerConfig, options))
