"""Blocks that several peers share. Sequences keep the positions 0, 1, 2 the authors' checkpoints count by."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crispseg.models.layers import BatchNorm2d
from crispseg.peers.attention import LinearAttention


def same_padding(kernel: int, stride: int = 1, dilation: int = 1) -> int:
    return ((stride - 1) + dilation * (kernel - 1)) // 2


def conv(
    in_channels: int,
    out_channels: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = False,
) -> nn.Conv2d:
    """A convolution with "same" padding, without bias unless asked."""
    padding = same_padding(kernel, stride, dilation)
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding, dilation, groups, bias)


class ConvBN(nn.Sequential):
    """Convolution (0), BatchNorm (1) and, where given, an activation (2)."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, act: nn.Module | None = None
    ) -> None:
        super().__init__(conv(in_channels, out_channels, kernel, stride), BatchNorm2d(out_channels))
        if act is not None:
            self.append(act)


def conv_bn_relu(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> ConvBN:
    return ConvBN(in_channels, out_channels, kernel, stride, nn.ReLU())


def conv_bn_relu6(in_channels: int, out_channels: int, kernel: int) -> ConvBN:
    return ConvBN(in_channels, out_channels, kernel, act=nn.ReLU6())


def separable_bn_inside(channels: int, kernel: int, padding: int) -> nn.Sequential:
    """Depthwise k x k, BatchNorm, pointwise, and nothing after (UNetFormer, SFA-Net)."""
    depthwise = nn.Conv2d(channels, channels, kernel, padding=padding, groups=channels, bias=False)
    return nn.Sequential(depthwise, BatchNorm2d(channels), conv(channels, channels, 1))


def separable_bn_after(in_channels: int, out_channels: int, dilation: int) -> nn.Sequential:
    """Depthwise dilated 3 x 3, pointwise, BatchNorm, ReLU (DC-Swin)."""
    return nn.Sequential(
        conv(in_channels, in_channels, 3, dilation=dilation, groups=in_channels),
        conv(in_channels, out_channels, 1),
        BatchNorm2d(out_channels),
        nn.ReLU(),
    )


def crop_like(x: Tensor, like: Tensor) -> Tensor:
    """The top left part of x with the height and width of `like`."""
    return x[..., : like.shape[-2], : like.shape[-1]]


def double_nearest(x: Tensor, like: Tensor) -> Tensor:
    """Twice the size, less the last row or column where `like`, the finer map, has an odd size."""
    return crop_like(F.interpolate(x, scale_factor=2.0, mode="nearest"), like)


def double_bilinear(x: Tensor, like: Tensor) -> Tensor:
    return crop_like(F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False), like)


def reflect_pad(x: Tensor, right: int, bottom: int) -> Tensor:
    """Reflect at the right and bottom edge; bounces to and fro where the map is smaller than the padding."""
    height, width = x.shape[-2:]
    if right < width and bottom < height:
        return F.pad(x, (0, right, 0, bottom), mode="reflect")
    rows = _bounce(height, height + bottom, x.device)
    columns = _bounce(width, width + right, x.device)
    return x[..., rows[:, None], columns]


def _bounce(size: int, length: int, device: torch.device) -> Tensor:
    """0, 1, .., size - 1, size - 2, .., 1, 0, 1, ..: `length` indices into an axis of `size`."""
    period = max(2 * size - 2, 1)
    index = torch.arange(length, device=device) % period
    return torch.minimum(index, period - index) if size > 1 else index


class PixelShuffleHead(nn.Module):
    """3 x 3 conv-BN-ReLU, then a biased 1 x 1 to classes * factor^2 that is shuffled up `factor` times."""

    def __init__(self, in_channels: int, middle: int, num_classes: int, factor: int) -> None:
        super().__init__()
        self.conv = conv_bn_relu(in_channels, middle, 3)
        self.conv_out = conv(middle, num_classes * factor**2, 1, bias=True)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return F.pixel_shuffle(self.conv_out(self.conv(x)), self.factor)


class TexturePath(nn.Module):
    """Three stride-2 convolutions and a 1 x 1: fine texture, 128 channels at stride 8 (ABCNet, BANet)."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.conv1 = conv_bn_relu(in_channels, 64, 7, stride=2)
        self.conv2 = conv_bn_relu(64, 64, 3, stride=2)
        self.conv3 = conv_bn_relu(64, 64, 3, stride=2)
        self.conv_out = conv_bn_relu(64, 128, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv_out(self.conv3(self.conv2(self.conv1(x))))


class FeatureAggregation(nn.Module):
    """Joins texture and context: F = conv(concat), gated by its own linear attention, F * attention(F) + F."""

    def __init__(self, channels: int, residual: bool) -> None:
        super().__init__()
        self.convblk = conv_bn_relu(channels, channels, 1)
        self.conv_atten = LinearAttention(channels, residual)

    def forward(self, texture: Tensor, context: Tensor) -> Tensor:
        joined = self.convblk(torch.cat([texture, context], dim=1))
        return joined * self.conv_atten(joined) + joined


def kaiming_conv_bn(module: nn.Module) -> None:
    """For `Module.apply`: Kaiming with a = 1 for the convolution of each ConvBN (ABCNet's and BANet's start)."""
    if isinstance(module, ConvBN):
        first = module[0]
        assert isinstance(first, nn.Conv2d)
        nn.init.kaiming_normal_(first.weight, a=1)


def small_normal(module: nn.Module) -> None:
    """For `Module.apply`: truncated normal of deviation 0.02 and zero bias in linear layers and 2-D convolutions."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
