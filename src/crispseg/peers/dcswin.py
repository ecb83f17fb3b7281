"""DC-Swin (Wang et al., 2022): Swin features densely connected across scales, with shared linear attentions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from crispseg.models.base import Output
from crispseg.peers import swin
from crispseg.peers.attention import ChannelLinearAttention, LinearAttention
from crispseg.peers.base import Peer, read_options
from crispseg.peers.blocks import (
    ConvBN,
    conv,
    conv_bn_relu,
    crop_like,
    double_nearest,
    separable_bn_after,
)

VARIANTS = {"tiny": swin.TINY, "small": swin.SMALL, "base": swin.BASE}


@dataclasses.dataclass(frozen=True)
class DCSwinConfig:
    drop_path: float = 0.3
    dropout: float = 0.05
    freeze_first_stage: bool = False  # the authors do, with a pretrained backbone; see `DCSwin.freeze_first_stage`


class Down(nn.Module):
    """Half the size: two convolutions beside one, added."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.convbn1 = ConvBN(in_channels, channels, 3)
        self.convbn2 = ConvBN(channels, channels, 3, stride=2)
        self.downsample = ConvBN(in_channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return (self.convbn2(self.convbn1(x).relu()) + self.downsample(x)).relu()


class LargeField(nn.Module):
    """Two dilated separable convolutions, each halving the channels and doubling the size."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = separable_bn_after(channels, channels // 2, dilation=6)
        self.second = separable_bn_after(channels // 2, channels // 4, dilation=12)

    def forward(self, x: Tensor, middle: Tensor, fine: Tensor) -> Tensor:
        x = double_nearest(self.first(x), like=middle)
        return double_nearest(self.second(x), like=fine)


class DenseAggregation(nn.Module):
    """DCFAM. One channel attention and one spatial attention serve two places each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        w1, w2, w3, w4 = (width * 2**i for i in range(4))
        self.conv4 = conv(w4, w4, 1)
        self.conv1 = conv(w1, w1, 1)
        self.lf4, self.lf3 = LargeField(w4), LargeField(w3)
        self.ca = ChannelLinearAttention()
        self.pa = LinearAttention(w3, residual=True)
        self.down12, self.down34 = Down(w1, w2), Down(w3, w4)
        self.down231, self.down232 = Down(w2, w3), Down(w2, w3)

    def forward(self, x1: Tensor, x2: Tensor, x3: Tensor, x4: Tensor) -> tuple[Tensor, Tensor]:
        out4 = self.conv4(x4) + self.down34(self.pa(self.down232(x2)))
        out3 = self.pa(x3) + self.down231(self.ca(self.down12(x1)))
        out2 = self.ca(x2) + self.lf4(out4, x3, x2)
        out1 = self.lf3(out3, x2, x1) + self.conv1(x1)
        return out1, out2


class Decoder(nn.Module):
    def __init__(self, width: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.dcfam = DenseAggregation(width)
        self.up = conv_bn_relu(2 * width, width, 3)
        self.dropout = nn.Dropout2d(dropout)
        self.segmentation_head = nn.Sequential(conv_bn_relu(width, width, 3), conv(width, num_classes, 1))

    def forward(self, features: list[Tensor]) -> Tensor:
        """Logits at stride 4."""
        out1, out2 = self.dcfam(*features)
        return self.segmentation_head(self.dropout(out1 + double_nearest(self.up(out2), like=out1)))


class DCSwin(Peer):
    authors_names = (
        *swin.MERGING_NAMES,
        (r"\.dcfam\.conv([14])\.0\.", r".dcfam.conv\1."),
        (r"\.lf([34])\.0\.", r".lf\1.first."),
        (r"\.lf([34])\.2\.", r".lf\1.second."),
        (r"\.segmentation_head\.1\.0\.", ".segmentation_head.1."),
        (r"\.up\.0\.", ".up."),
    )

    def __init__(self, num_classes: int, in_channels: int, options: DCSwinConfig, variant: str) -> None:
        super().__init__()
        encoder = VARIANTS[variant]
        self.backbone = swin.Swin(encoder, in_channels, options.drop_path, pad_first=True, output_norms=True)
        self.decoder = Decoder(encoder.width, num_classes, options.dropout)
        if options.freeze_first_stage:
            self.freeze_first_stage()

    def freeze_first_stage(self) -> None:
        """Stop learning in the patch embedding, the first stage and its merging; for pretrained weights only."""
        for part in (self.backbone.patch_embed, self.backbone.layers[0], self.backbone.layers[1].downsample):
            part.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor | Output:
        logits = self.decoder(self.backbone(x))
        logits = crop_like(F.interpolate(logits, scale_factor=4.0, mode="bilinear", align_corners=True), x)
        return Output(logits) if self.training else logits


def build(num_classes: int, in_channels: int, options: Mapping[str, Any], variant: str) -> DCSwin:
    return DCSwin(num_classes, in_channels, read_options(DCSwinConfig, options), variant)
