"""Small layers that more than one model uses."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BatchNorm2d(nn.BatchNorm2d):
    """BatchNorm that also trains on a single value per channel, using its running statistics there.

    One image pooled to 1x1 has no variance to normalise by; torch raises, and training with batch one would stop.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.training and input.shape[0] * input.shape[2] * input.shape[3] == 1:
            return nn.functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        return super().forward(input)


class ConvNorm(nn.Module):
    """A convolution, BatchNorm unless `norm` is off, and ReLU unless `act` is off; "same" padding."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        norm: bool = True,
        act: bool = True,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, groups=groups, bias=bias)
        self.norm = BatchNorm2d(out_channels) if norm else None
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.norm is not None:
            x = self.norm(x)
        return torch.relu(x) if self.act else x


class DropPath(nn.Module):
    """Drop a residual branch for whole samples, with probability `rate`, while training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        keep = torch.rand(x.shape[0], *[1] * (x.dim() - 1), device=x.device) >= self.rate
        return x * keep.to(x.dtype) / (1.0 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"


def resize(x: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """Bilinear, pixel centres kept (align_corners false)."""
    return nn.functional.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)


def to_channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)  # (B, C, H, W) -> (B, H, W, C)


def to_channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)  # (B, H, W, C) -> (B, C, H, W)
