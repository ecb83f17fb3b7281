"""ABCNet (Li et al., 2021): a texture path and a context path with linear attention, joined at stride 8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from crispseg.errors import UserError
from crispseg.models.base import Output
from crispseg.models.layers import BatchNorm2d
from crispseg.peers.attention import LinearAttention
from crispseg.peers.base import Peer
from crispseg.peers.blocks import (
    FeatureAggregation,
    PixelShuffleHead,
    TexturePath,
    conv_bn_relu,
    crop_like,
    double_nearest,
    kaiming_conv_bn,
)
from crispseg.peers.encoders import resnet18


class AttentionEnhancement(nn.Module):
    """3 x 3 conv-BN-ReLU, linear attention without residual, BatchNorm; starts as zero, since gamma does."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv = conv_bn_relu(in_channels, channels, 3)
        self.conv_atten = LinearAttention(channels, residual=False)
        self.bn_atten = BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn_atten(self.conv_atten(self.conv(x)))


class ContextPath(nn.Module):
    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.resnet = resnet18(in_channels)
        self.arm16 = AttentionEnhancement(256, 128)
        self.arm32 = AttentionEnhancement(512, 128)
        self.conv_head32 = conv_bn_relu(128, 128, 3)
        self.conv_head16 = conv_bn_relu(128, 128, 3)
        self.conv_avg = conv_bn_relu(512, 128, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Context at strides 8 and 16, 128 channels each."""
        _, stride8, stride16, stride32 = self.resnet(x)
        average = self.conv_avg(stride32.mean(dim=(2, 3), keepdim=True))
        context16 = self.conv_head32(double_nearest(self.arm32(stride32) + average, like=stride16))
        context8 = self.conv_head16(double_nearest(self.arm16(stride16) + context16, like=stride8))
        return context8, context16


class ABCNet(Peer):
    authors_names = ((r"\.conv\.weight$", ".0.weight"), (r"\.bn\.(\w+)$", r".1.\1"))

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.cp = ContextPath(in_channels)
        self.sp = TexturePath(in_channels)
        self.fam = FeatureAggregation(256, residual=False)
        self.conv_out = PixelShuffleHead(256, 256, num_classes, factor=8)
        self.conv_out16 = PixelShuffleHead(128, 64, num_classes, factor=8)
        self.conv_out32 = PixelShuffleHead(128, 64, num_classes, factor=16)
        self.apply(kaiming_conv_bn)

    def forward(self, x: Tensor) -> Tensor | Output:
        context8, context16 = self.cp(x)
        logits = crop_like(self.conv_out(self.fam(self.sp(x), context8)), x)
        if not self.training:
            return logits
        return Output(logits, (crop_like(self.conv_out16(context8), x), crop_like(self.conv_out32(context16), x)))


def build(num_classes: int, in_channels: int, options: Mapping[str, Any]) -> ABCNet:
    if options:
        raise UserError(f"ABCNet has no options to choose, but was given {', '.join(options)}")
    return ABCNet(num_classes, in_channels)
