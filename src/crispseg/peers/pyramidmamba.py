"""PyramidMamba (Wang et al., 2025): Swin-B, a pyramid of pooled maps, and one Mamba block over the joined pixels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crispseg.models.base import Output
from crispseg.models.layers import resize
from crispseg.peers import swin
from crispseg.peers.base import Peer, read_options
from crispseg.peers.blocks import conv, conv_bn_relu6, crop_like, double_nearest, small_normal
from crispseg.peers.mamba import Mamba

BRANCHES = 4


@dataclasses.dataclass(frozen=True)
class PyramidMambaConfig:
    drop_path: float = 0.1
    dropout: float = 0.1


def pool_size(size: int, branch: int) -> int:
    """1, 1 + s, 1 + 2 s, 1 + 3 s with s a quarter of the map's size; no larger than the map."""
    return min(1 + branch * max(size // 4, 1), size)


class PyramidPoolMamba(nn.Module):
    """The map beside four poolings of it, resized back and joined, then read once, row by row, by Mamba."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.pool_layers = nn.ModuleList(conv_bn_relu6(in_channels, channels, 1) for _ in range(BRANCHES))
        self.mamba = Mamba(in_channels + BRANCHES * channels)

    def forward(self, x: Tensor) -> Tensor:
        size = (x.shape[-2], x.shape[-1])
        first, *others = self.pool_layers
        # the first branch pools after its convolution, the others before
        pooled = [first(x).mean(dim=(2, 3), keepdim=True)]
        for branch, layer in enumerate(others, start=1):
            target = (pool_size(size[0], branch), pool_size(size[1], branch))
            pooled.append(layer(F.adaptive_avg_pool2d(x, target)))
        joined = torch.cat([x, *(resize(p, size) for p in pooled)], dim=1)
        tokens = self.mamba(joined.flatten(2).transpose(1, 2))  # (B, H W, C)
        return tokens.transpose(1, 2).unflatten(2, size)


class ConvFeedForward(nn.Module):
    def __init__(self, channels: int, hidden: int, out_channels: int, dropout: float) -> None:
        super().__init__()
        self.conv = conv_bn_relu6(channels, channels, 3)
        self.fc1 = conv(channels, hidden, 1)
        self.fc2 = conv(hidden, out_channels, 1)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(F.gelu(self.fc1(self.conv(x))))
        return self.drop(self.fc2(x))


class PyramidBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, dropout: float) -> None:
        super().__init__()
        self.mamba = PyramidPoolMamba(in_channels, channels)
        self.conv_ffn = ConvFeedForward(in_channels + BRANCHES * channels, 4 * channels, channels, dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv_ffn(self.mamba(x))


class Decoder(nn.Module):
    def __init__(self, width: int, num_classes: int, dropout: float, channels: int = 128) -> None:
        super().__init__()
        self.b3 = PyramidBlock(8 * width, channels, dropout)
        self.up_conv = nn.ModuleList(conv_bn_relu6(channels, channels, 3) for _ in range(3))
        self.pre_conv = conv_bn_relu6(width, channels, 3)
        half = channels // 2
        self.head = nn.ModuleList(
            [conv_bn_relu6(channels, half, 3), conv_bn_relu6(half, half, 3), conv(half, num_classes, 1)]
        )

    def forward(self, features: list[Tensor]) -> Tensor:
        """Logits at the input's size, or up to three pixels more."""
        stride4, stride8, stride16, stride32 = features
        x = self.b3(stride32)
        for step, like in zip(self.up_conv, (stride16, stride8, stride4), strict=True):
            x = double_nearest(step(x), like)
        x = x + self.pre_conv(stride4)
        narrow, refine, classify = self.head
        x = refine(F.interpolate(narrow(x), scale_factor=2.0, mode="bilinear"))
        return classify(F.interpolate(x, scale_factor=2.0, mode="bilinear"))


class PyramidMamba(Peer):
    one_size_because = "its scan takes as many steps as the image has tokens"
    authors_names = (
        (r"^backbone\.layers_", "backbone.layers."),
        (r"\.pool_layers\.0\.0\.", ".pool_layers.0."),
        (r"\.pool_layers\.([123])\.1\.", r".pool_layers.\1."),
        (r"\.fc([12])\.0\.", r".fc\1."),
        (r"\.up_conv\.2\.", ".up_conv.1."),
        (r"\.up_conv\.4\.", ".up_conv.2."),
        (r"\.head\.2\.", ".head.1."),
        (r"\.head\.4\.0\.", ".head.2."),
    )

    def __init__(self, num_classes: int, in_channels: int, options: PyramidMambaConfig) -> None:
        super().__init__()
        encoder = swin.BASE_WINDOW12
        self.backbone = swin.Swin(encoder, in_channels, options.drop_path, pad_first=False, output_norms=False)
        self.decoder = Decoder(encoder.width, num_classes, options.dropout)
        self.decoder.apply(small_normal)  # also Mamba's dt_proj, whose own careful start is lost, as with the authors

    def forward(self, x: Tensor) -> Tensor | Output:
        logits = crop_like(self.decoder(self.backbone(x)), x)
        return Output(logits) if self.training else logits


def build(num_classes: int, in_channels: int, options: Mapping[str, Any]) -> PyramidMamba:
    return PyramidMamba(num_classes, in_channels, read_options(PyramidMambaConfig, options))
