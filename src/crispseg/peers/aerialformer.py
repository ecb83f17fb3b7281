"""AerialFormer (Hanyu et al., 2024): Swin beside a convolutional stem, and a decoder of multi-dilated convolutions."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from crispseg.models.base import Output
from crispseg.models.layers import BatchNorm2d, resize
from crispseg.peers import swin
from crispseg.peers.base import Peer, read_options
from crispseg.peers.blocks import ConvBN, conv, conv_bn_relu, crop_like

VARIANTS = {"tiny": swin.TINY, "small": swin.SMALL, "base": swin.BASE_WINDOW12}

# (kernel, dilation) of the three groups, deepest level first
GROUPS = (
    ((3, 1), (3, 2), (3, 3)),
    ((3, 1), (3, 2), (3, 3)),
    ((3, 1), (3, 2), (3, 3)),
    ((3, 1), (3, 1), (3, 1)),
    ((1, 1), (3, 1), (3, 1)),
)


@dataclasses.dataclass(frozen=True)
class AerialFormerConfig:
    drop_path: float = 0.3
    dropout: float = 0.1


class StemAndSwin(nn.Module):
    """Swin's four maps and, before them, a stem's at stride 2 that serves as a skip only."""

    def __init__(self, variant: swin.SwinVariant, in_channels: int, drop_path: float) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            ConvBN(in_channels, 64, 3, stride=2, act=nn.GELU()),
            ConvBN(64, 64, 3, act=nn.GELU()),
            ConvBN(64, 64, 3, act=nn.GELU()),
            ConvBN(64, variant.width // 2, 1, act=nn.GELU()),
        )
        self.swin = swin.Swin(variant, in_channels, drop_path, pad_first=True, output_norms=True)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.stem(x), *self.swin(x)]


class MultiDilatedConv(nn.Module):
    """1 x 1; three groups of channels, each its own convolution; 1 x 1; BatchNorm; ReLU."""

    def __init__(self, in_channels: int, channels: int, groups: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        self.pre_conv_layer = conv(in_channels, in_channels, 1)
        widths = group_widths(in_channels, len(groups))
        self.layers = nn.ModuleList(
            conv(width, width, kernel, dilation=dilation)
            for width, (kernel, dilation) in zip(widths, groups, strict=True)
        )
        self.fusion_layer = conv(in_channels, channels, 1)
        self.norm = BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.pre_conv_layer(x).chunk(len(self.layers), dim=1)
        x = torch.cat([layer(part) for layer, part in zip(self.layers, parts, strict=True)], dim=1)
        return self.norm(self.fusion_layer(x)).relu()


def group_widths(channels: int, groups: int) -> list[int]:
    """As Tensor.chunk splits: 1024 in three is 342, 342, 340."""
    return [len(part) for part in torch.arange(channels, device="cpu").chunk(groups)]


class Up(nn.Sequential):
    """Transposed 2 x 2 convolution (0), BatchNorm (1), ReLU."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__(
            nn.ConvTranspose2d(in_channels, channels, 2, stride=2, bias=False), BatchNorm2d(channels), nn.ReLU()
        )


class Decoder(nn.Module):
    def __init__(self, width: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        widths = [8 * width, 4 * width, 2 * width, width, width // 2]
        joined = [widths[0], *(2 * w for w in widths[1:])]  # what each level receives: up-sampled map and skip
        # level 0 has nothing to up-sample; the place keeps the levels' numbers equal
        self.up_convs = nn.ModuleList([nn.Identity(), *(Up(a, b) for a, b in itertools.pairwise(widths))])
        self.dilated_convs = nn.ModuleList(
            nn.Sequential(MultiDilatedConv(a, b, groups), conv_bn_relu(b, b, 3))
            for a, b, groups in zip(joined, widths, GROUPS, strict=True)
        )
        self.dropout = nn.Dropout2d(dropout)
        self.conv_seg = conv(widths[-1], num_classes, 1, bias=True)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Logits at stride 2."""
        *skips, x = features
        x = self.dilated_convs[0](x)
        levels = zip(self.up_convs[1:], self.dilated_convs[1:], reversed(skips), strict=True)
        for up, mix, skip in levels:
            x = mix(torch.cat([crop_like(up(x), skip), skip], dim=1))
        return self.conv_seg(self.dropout(x))


class AerialFormer(Peer):
    authors_names = (
        (r"^backbone\.(?!stem\.)", "backbone.swin."),
        (r"\.stages\.", ".layers."),
        *swin.MERGING_NAMES,
        (r"\.attn\.w_msa\.", ".attn."),
        (r"\.ffn\.layers\.0\.0\.", ".mlp.fc1."),
        (r"\.ffn\.layers\.1\.", ".mlp.fc2."),
        (r"\.patch_embed\.projection\.", ".patch_embed.proj."),
        (r"^(backbone\.stem\.\d|decode_head\.dilated_convs\.\d\.1)\.conv\.", r"\1.0."),
        (r"^(backbone\.stem\.\d|decode_head\.dilated_convs\.\d\.1)\.bn\.", r"\1.1."),
    )

    def __init__(self, num_classes: int, in_channels: int, options: AerialFormerConfig, variant: str) -> None:
        super().__init__()
        encoder = VARIANTS[variant]
        self.backbone = StemAndSwin(encoder, in_channels, options.drop_path)
        self.decode_head = Decoder(encoder.width, num_classes, options.dropout)

    def forward(self, x: Tensor) -> Tensor | Output:
        logits = resize(self.decode_head(self.backbone(x)), (x.shape[-2], x.shape[-1]))
        return Output(logits) if self.training else logits

    def from_authors(self, name: str, tensor: Tensor) -> Tensor:
        return quadrants_first(tensor) if ".downsample." in name else tensor


def quadrants_first(tensor: Tensor) -> Tensor:
    """Patch merging's last axis, from unfold's order, channel * 4 + 2 * row + column, to quadrant by quadrant:
    (2 * column + row) * channels + channel."""
    return tensor.unflatten(-1, (-1, 2, 2)).transpose(-3, -1).flatten(-3)


def build(num_classes: int, in_channels: int, options: Mapping[str, Any], variant: str) -> AerialFormer:
    return AerialFormer(num_classes, in_channels, read_options(AerialFormerConfig, options), variant)
