"""SFA-Net (Hwang et al., 2024): EfficientNet-B3, a feature adjustment of the deep maps, and UNetFormer's decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from crispseg.models.base import Output
from crispseg.models.layers import BatchNorm2d
from crispseg.peers.base import Peer, read_options
from crispseg.peers.blocks import double_bilinear
from crispseg.peers.encoders import efficientnet_b3
from crispseg.peers.global_local import AUTHORS_NAMES, GlobalLocalDecoder, RefinementHead


@dataclasses.dataclass(frozen=True)
class SFANetConfig:
    dropout: float = 0.1  # before both classifiers


class Down(nn.Module):
    """Every second pixel through a biased 1 x 1 convolution and BatchNorm."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, 1, stride=2)
        self.bn = BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))


class VectorAdjustment(nn.Module):
    """The mean over space, gated by itself: a map of one pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = channels // 16
        self.conv = nn.Sequential(
            nn.Conv2d(channels, hidden, 1), nn.ReLU(), nn.Conv2d(hidden, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=(2, 3), keepdim=True)
        return self.conv(mean) * mean


class MapAdjustment(nn.Module):
    """Squeeze-and-excitation: the map, gated per channel by its mean."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = channels // 16
        self.fc = nn.Sequential(
            nn.Linear(channels, hidden, bias=False),
            nn.ReLU(),
            nn.Linear(hidden, channels, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(dim=(2, 3)))[:, :, None, None] * x


class ShuffledRefinementHead(RefinementHead):
    """The doubled map's channels are dealt out over four groups before the fusion."""

    def enlarge(self, x: Tensor, like: Tensor) -> Tensor:
        return shuffle_channels(double_bilinear(x, like), groups=4)


def shuffle_channels(x: Tensor, groups: int) -> Tensor:
    # channel g * n + i goes to i * groups + g
    return x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


class AdjustingDecoder(GlobalLocalDecoder):
    """UNetFormer's decoder on adjusted maps: strides 16 and 32 are enriched from the finer ones, 4 and 8 stay raw."""

    refinement = ShuffledRefinementHead

    def __init__(self, num_classes: int, dropout: float) -> None:
        super().__init__((32, 48, 136, 384), num_classes, dropout)
        self.down12, self.down34 = Down(32, 48), Down(136, 384)
        self.down231, self.down232 = Down(48, 136), Down(48, 136)
        self.fam1, self.fam2 = VectorAdjustment(48), MapAdjustment(136)

    def forward(self, features: Sequence[Tensor], size: tuple[int, int]) -> Tensor | Output:
        e1, e2, e3, e4 = features
        f1 = self.fam1(e2 + self.down12(e1))  # (B, 48, 1, 1)
        f2 = self.fam2(e3 + self.down231(e2))
        return super().forward((e1, e2, self.down232(f1) + f2, e4 + self.down34(f2)), size)


class SFANet(Peer):
    authors_names = AUTHORS_NAMES

    def __init__(self, num_classes: int, in_channels: int, options: SFANetConfig) -> None:
        super().__init__()
        self.backbone = efficientnet_b3(in_channels)
        self.decoder = AdjustingDecoder(num_classes, options.dropout)

    def forward(self, x: Tensor) -> Tensor | Output:
        return self.decoder(self.backbone(x), (x.shape[-2], x.shape[-1]))


def build(num_classes: int, in_channels: int, options: Mapping[str, Any]) -> SFANet:
    return SFANet(num_classes, in_channels, read_options(SFANetConfig, options))
