"""The decoder parts that UNetFormer brought and SFA-Net took over: global-local blocks, fusions and heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crispseg.models.base import Output
from crispseg.models.layers import BatchNorm2d, resize
from crispseg.peers.blocks import (
    ConvBN,
    conv,
    conv_bn_relu6,
    double_bilinear,
    reflect_pad,
    separable_bn_inside,
)

WINDOW = 8
WIDTH = 64  # channels of the whole decoder
FUSION_EPS = 1e-8

# From the authors' names to ours: they wrap single convolutions in sequences.
AUTHORS_NAMES = (
    (r"\.(p[123])\.pre_conv\.0\.", r".\1.pre_conv."),
    (r"\.qkv\.0\.", ".qkv."),
    (r"\.ca\.([13])\.0\.", r".ca.\1."),
    (r"\.conv_out\.0\.", ".conv_out."),
    (r"\.segmentation_head\.2\.0\.", ".segmentation_head.2."),
)


def relative_position_index(window: int) -> Tensor:
    """(window^2, window^2) indices into a table of (2 window - 1)^2 relative offsets, row offset major."""
    rows, columns = torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
    rows, columns = rows.flatten(), columns.flatten()
    row_offset = rows[:, None] - rows + window - 1
    column_offset = columns[:, None] - columns + window - 1
    return row_offset * (2 * window - 1) + column_offset


class GlobalLocalAttention(nn.Module):
    """Attention inside 8 x 8 windows, spread over window borders by a cross-shaped mean, plus a local branch."""

    def __init__(self, channels: int = WIDTH, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = conv(channels, 3 * channels, 1)
        self.local1 = ConvBN(channels, channels, 3)
        self.local2 = ConvBN(channels, channels, 1)
        self.proj = separable_bn_inside(channels, WINDOW, padding=WINDOW // 2 - 1)
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * WINDOW - 1) ** 2, heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        self.register_buffer("relative_position_index", relative_position_index(WINDOW), persistent=False)
        self.relative_position_index: Tensor

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        local = self.local1(x) + self.local2(x)
        padded = reflect_pad(x, -width % WINDOW, -height % WINDOW)
        attended = self.window_attention(padded)[..., :height, :width]
        return self.proj(reflect_pad(cross_mean(attended) + local, 1, 1))

    def window_attention(self, x: Tensor) -> Tensor:
        """Softmax attention in each window on its own; height and width are multiples of the window."""
        batch, channels, height, width = x.shape
        rows, columns = height // WINDOW, width // WINDOW
        # (B, 3, heads, d, rows, w, columns, w) -> (3, B, rows, columns, heads, w * w, d)
        qkv = self.qkv(x).view(batch, 3, self.heads, -1, rows, WINDOW, columns, WINDOW)
        qkv = qkv.permute(1, 0, 4, 6, 2, 5, 7, 3).flatten(5, 6)
        query, key, value = qkv.unbind(0)
        logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5 + self.position_bias()
        out = logits.softmax(dim=-1) @ value  # (B, rows, columns, heads, w * w, d)
        out = out.unflatten(4, (WINDOW, WINDOW)).permute(0, 3, 6, 1, 4, 2, 5)
        return out.reshape(batch, channels, height, width)

    def position_bias(self) -> Tensor:
        bias = self.relative_position_bias_table[self.relative_position_index]  # (w * w, w * w, heads)
        return bias.permute(2, 0, 1)


def cross_mean(x: Tensor) -> Tensor:
    """Mean of a column of 8 plus mean of a row of 8, from 3 before to 4 after; the one past the end is reflected."""
    padding = WINDOW // 2 - 1
    vertical = F.avg_pool2d(reflect_pad(x, 0, 1), (WINDOW, 1), stride=1, padding=(padding, 0))
    horizontal = F.avg_pool2d(reflect_pad(x, 1, 0), (1, WINDOW), stride=1, padding=(0, padding))
    return vertical + horizontal


class ConvMlp(nn.Module):
    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = conv(channels, hidden, 1, bias=True)
        self.fc2 = conv(hidden, channels, 1, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu6(self.fc1(x)))


class GlobalLocalBlock(nn.Module):
    """GLTB: x + attention(BN(x)), then x + mlp(BN(x))."""

    def __init__(self, channels: int = WIDTH) -> None:
        super().__init__()
        self.norm1 = BatchNorm2d(channels)
        self.attn = GlobalLocalAttention(channels)
        self.norm2 = BatchNorm2d(channels)
        self.mlp = ConvMlp(channels, 4 * channels)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class WeightedFusion(nn.Module):
    """A skip and the map from below, mixed by two learned non-negative weights that sum to one."""

    def __init__(self, skip_channels: int, channels: int = WIDTH) -> None:
        super().__init__()
        self.pre_conv = conv(skip_channels, channels, 1)
        self.weights = nn.Parameter(torch.ones(2))
        self.post_conv = conv_bn_relu6(channels, channels, 3)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        weights = self.weights.relu()
        weights = weights / (weights.sum() + FUSION_EPS)
        return self.post_conv(weights[0] * self.pre_conv(skip) + weights[1] * self.enlarge(x, skip))

    def enlarge(self, x: Tensor, like: Tensor) -> Tensor:
        return double_bilinear(x, like)


class RefinementHead(WeightedFusion):
    """Weighted fusion at stride 4, then a pixel gate and a channel gate side by side, with a shortcut."""

    def __init__(self, skip_channels: int, channels: int = WIDTH) -> None:
        super().__init__(skip_channels, channels)
        self.pa = nn.Sequential(conv(channels, channels, 3, groups=channels, bias=True), nn.Sigmoid())
        self.ca = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            conv(channels, channels // 16, 1),
            nn.ReLU6(),
            conv(channels // 16, channels, 1),
            nn.Sigmoid(),
        )
        self.shortcut = ConvBN(channels, channels, 1)
        self.proj = separable_bn_inside(channels, 3, padding=1)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = super().forward(x, skip)
        gated = self.pa(x) * x + self.ca(x) * x
        return F.relu6(self.proj(gated) + self.shortcut(x))


def segmentation_head(num_classes: int, dropout: float, channels: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(
        conv_bn_relu6(channels, channels, 3),
        nn.Dropout2d(dropout),
        conv(channels, num_classes, 1),
    )


class AuxiliaryHead(nn.Module):
    """Classes from the sum of the three global-local maps at stride 8; runs in training only."""

    def __init__(self, num_classes: int, dropout: float, channels: int = WIDTH) -> None:
        super().__init__()
        self.conv = conv_bn_relu6(channels, channels, 3)
        self.drop = nn.Dropout(dropout)
        self.conv_out = conv(channels, num_classes, 1)

    def forward(self, stride32: Tensor, stride16: Tensor, stride8: Tensor) -> Tensor:
        size = stride8.shape[-2:]
        total = stride8
        for coarse in (stride16, stride32):
            total = total + F.interpolate(coarse, size=size, mode="bilinear", align_corners=True)
        return self.conv_out(self.drop(self.conv(total)))


class GlobalLocalDecoder(nn.Module):
    """From four maps at strides 4, 8, 16, 32 to logits: blocks b4, b3, b2 with fusions p3, p2, p1 between them."""

    refinement: type[RefinementHead] = RefinementHead

    def __init__(self, widths: tuple[int, int, int, int], num_classes: int, dropout: float) -> None:
        super().__init__()
        self.pre_conv = ConvBN(widths[3], WIDTH, 1)
        self.b4, self.b3, self.b2 = GlobalLocalBlock(), GlobalLocalBlock(), GlobalLocalBlock()
        self.p3, self.p2 = WeightedFusion(widths[2]), WeightedFusion(widths[1])
        self.p1 = self.refinement(widths[0])
        self.segmentation_head = segmentation_head(num_classes, dropout)
        self.aux_head = AuxiliaryHead(num_classes, dropout)

    def forward(self, features: Sequence[Tensor], size: tuple[int, int]) -> Tensor | Output:
        stride4, stride8, stride16, stride32 = features
        h4 = self.b4(self.pre_conv(stride32))
        h3 = self.b3(self.p3(h4, stride16))
        h2 = self.b2(self.p2(h3, stride8))
        logits = resize(self.segmentation_head(self.p1(h2, stride4)), size)
        if not self.training:
            return logits
        return Output(logits, (resize(self.aux_head(h4, h3, h2), size),))
