"""Small layers that more than one model uses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from crispseg.layout import as_matrix, to_channels_first, to_channels_last
from crispseg.ops.train.batch_norm import batch_norm
from crispseg.ops.train.drop_path import add_kept, kept_scale
from crispseg.ops.train.mlp import linear


class BatchNorm2d(nn.BatchNorm2d):
    """BatchNorm, with the ReLU of the result if wanted, that also trains on a single value per channel, using its
    running statistics there.

    One image pooled to 1x1 has no variance to normalise by; torch raises, and training with batch one would stop.
    """

    def forward(self, input: Tensor, relu: bool = False) -> Tensor:
        if self.training and batch_norm.takes(input) and self._is_usual():
            return self._batch_norm(input, relu)
        if self.training and input.shape[0] * input.shape[2] * input.shape[3] == 1:
            y = nn.functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        else:
            y = super().forward(input)
        return torch.relu(y) if relu else y

    def once_folded(self) -> nn.Module:
        """What is left to do where a convolution before it has taken it over; says that this may happen."""
        return nn.Identity()

    def _is_usual(self) -> bool:
        return self.affine and self.track_running_stats and self.momentum is not None

    def _batch_norm(self, input: Tensor, relu: bool) -> Tensor:
        mean, variance, batches = self.running_mean, self.running_var, self.num_batches_tracked
        assert mean is not None and variance is not None and batches is not None and self.momentum is not None
        return batch_norm(input, self.weight, self.bias, mean, variance, batches, self.momentum, self.eps, relu)


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
        x = self._convolve(x)
        if isinstance(self.norm, BatchNorm2d):
            return self.norm(x, relu=self.act)
        if self.norm is not None:  # folded away, or shared by several processes
            x = self.norm(x)
            return torch.relu(x) if self.act else x
        return x

    def _convolve(self, x: Tensor) -> Tensor:
        """With the ReLU, where there is no norm before it."""
        weight, bias, relu = self.conv.weight, self.conv.bias, self.act and self.norm is None
        if bias is not None and self._is_linear and _channels_last(x) and linear.takes(x, weight, bias):
            return to_channels_first(linear(to_channels_last(x), as_matrix(weight), bias, relu=relu))
        x = self.conv(x)
        return torch.relu(x) if relu else x

    @property
    def _is_linear(self) -> bool:
        """Whether it trains, and is but a product of each pixel."""
        conv = self.conv
        alone = conv.kernel_size == (1, 1) and conv.stride == (1, 1) and conv.groups == 1
        return self.training and alone


class DropPath(nn.Module):
    """Drop a residual branch for whole samples, with probability `rate`, while training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return x * kept_scale(x, self._draw(x), self.rate) if self._drops else x

    def add(self, x: Tensor, branch: Tensor) -> Tensor:
        """x + self(branch), in one step."""
        return add_kept(x, branch, self._draw(x), self.rate) if self._drops else x + branch

    @property
    def _drops(self) -> bool:
        return self.training and self.rate > 0.0

    def _draw(self, x: Tensor) -> Tensor:
        return torch.rand(x.shape[0], device=x.device)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"


def resize(x: Tensor, size: tuple[int, int] | torch.Size) -> Tensor:
    """Bilinear, pixel centres kept (align_corners false)."""
    return nn.functional.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)


def _channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)
