"""BANet (Wang et al., 2021): ResT-Lite for context, a texture path for detail, joined at stride 8. No timm needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from crispseg.errors import UserError
from crispseg.models.base import Output
from crispseg.peers.attention import LinearAttention
from crispseg.peers.base import Peer
from crispseg.peers.blocks import (
    FeatureAggregation,
    PixelShuffleHead,
    TexturePath,
    conv,
    conv_bn_relu,
    crop_like,
    double_nearest,
    kaiming_conv_bn,
)
from crispseg.peers.rest import ResTLite


class ShuffleUp(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.proj = conv(channels, 4 * channels, 1, bias=True)
        nn.init.xavier_normal_(self.proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.proj(x), 2)


class AttentionEmbedding(nn.Module):
    """The deep map, through linear attention and doubled, gates the shallower one: low * A + low."""

    def __init__(self, high_channels: int, low_channels: int) -> None:
        super().__init__()
        self.attention = LinearAttention(high_channels, residual=True)
        self.conv_attn = conv_bn_relu(high_channels, low_channels, 3)
        self.up = ShuffleUp(low_channels)

    def forward(self, low: Tensor, high: Tensor) -> Tensor:
        gate = crop_like(self.up(self.conv_attn(self.attention(high))), low)
        return low * gate + low


class DependencyPath(nn.Module):
    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.ResT = ResTLite(in_channels)
        self.AE = AttentionEmbedding(512, 256)
        self.conv_avg = conv_bn_relu(256, 128, 1)

    def forward(self, x: Tensor, like: Tensor) -> Tensor:
        """128 channels at stride 16, doubled to the size of `like`."""
        stride16, stride32 = self.ResT(x)
        return double_nearest(self.conv_avg(self.AE(stride16, stride32)), like)


class BANet(Peer):
    # ResT's patch embeddings have plain convolutions called `conv`; elsewhere `conv`, `bn` are the pair 0, 1
    authors_names = ((r"(?<!patch_embed_[234])\.conv\.weight$", ".0.weight"), (r"\.bn\.(\w+)$", r".1.\1"))

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.cp = DependencyPath(in_channels)
        self.sp = TexturePath(in_channels)
        self.fam = FeatureAggregation(256, residual=True)
        self.conv_out = PixelShuffleHead(256, 256, num_classes, factor=8)
        self.apply(kaiming_conv_bn)

    def forward(self, x: Tensor) -> Tensor | Output:
        texture = self.sp(x)
        logits = crop_like(self.conv_out(self.fam(texture, self.cp(x, like=texture))), x)
        return Output(logits) if self.training else logits


def build(num_classes: int, in_channels: int, options: Mapping[str, Any]) -> BANet:
    if options:
        raise UserError(f"BANet has no options to choose, but was given {', '.join(options)}")
    return BANet(num_classes, in_channels)
