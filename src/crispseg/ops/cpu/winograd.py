"""3x3 convolutions with a quarter of the multiplications, by Winograd's algorithm F(4x4, 3x3). For CPUs.

Each 4x4 square of the result comes from a 6x6 tile of the map: tile and weights are transformed to 36 numbers per
channel, multiplied, summed over channels, and 36 numbers are transformed back to 16. The transforms of tiles are
products with a matrix for all channels at once; the 36 products over channels are one convolution of 36 groups.

The points of interpolation are 0, +-1/sqrt(2), +-sqrt(2) and infinity. They are each other's inverses, so that no power
of them is large, and rounding costs about a digit less than with the usual 0, +-1, +-2.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from crispseg.ops.cpu import onednn
from crispseg.ops.dispatch import why_not_on_a_cpu

_RESULT = 4  # the square's side
_TILE = 6
_POINTS = (0.0, 0.5**0.5, -(0.5**0.5), 2**0.5, -(2**0.5))
_TILES = 256  # worked on at a time, so that they stay in the cache
# With fewer channels the transforms cost more than what they save. With more, oneDNN wants the weights in another
# layout where there are few tiles, and laying them out takes far longer than the convolution.
LEAST_CHANNELS, MOST_CHANNELS = 128, 256


class Transforms(NamedTuple):
    """Matrices, in float64."""

    tile: Tensor  # (36, 36)
    weight: Tensor  # (36, 9)
    result: Tensor  # (16, 36)
    bias: Tensor  # (36,): what is transformed back to ones


@functools.cache
def transforms() -> Transforms:
    """From the algorithm for a line: four products of sums at each point, as the transpose of multiplying the values
    that two polynomials of degrees 2 and 3 have at the points, and interpolating."""
    weight, result, tile = (_values(width) for width in (_TILE - _RESULT + 1, _RESULT, _TILE))
    tile = torch.linalg.inv(tile).t()
    ones = torch.linalg.pinv(result.t()).sum(1)
    return Transforms(
        torch.kron(tile, tile), torch.kron(weight, weight), torch.kron(result, result).t(), torch.kron(ones, ones)
    )


def _values(width: int) -> Tensor:
    """(6, width): of a polynomial with that many coefficients at the points, the last of which is infinity."""
    powers = [[point**i for i in range(width)] for point in _POINTS]
    return torch.tensor([*powers, [0.0] * (width - 1) + [1.0]], dtype=torch.float64)


class Frame(NamedTuple):
    """A map within zeros: as many as complete its last tiles."""

    whole: Tensor  # (B, 4 down + 2, 4 across + 2, C)
    inside: Tensor  # (B, H, W, C), unwritten
    down: int
    across: int

    @classmethod
    def of(cls, like: Tensor, shape: tuple[int, int, int, int]) -> Frame:
        """For a map of this shape, of the type of `like`."""
        batch, height, width, channels = shape
        down, across = -(-height // _RESULT), -(-width // _RESULT)
        whole = like.new_empty(batch, _RESULT * down + 2, _RESULT * across + 2, channels)
        for edge in (whole[:, :1], whole[:, height + 1 :], whole[:, :, :1], whole[:, :, width + 1 :]):
            edge.zero_()
        return cls(whole, whole[:, 1 : height + 1, 1 : width + 1], down, across)


class Winograd(NamedTuple):
    """A 3x3 convolution of maps (B, H, W, in) with "same" padding and its bias, through a ReLU if it has one."""

    tile: Tensor
    result: Tensor
    products: onednn.Convolution
    relu: bool

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, relu: bool = False) -> Winograd:
        """weight (out, in, 3, 3), bias (out,); their transforms are rounded once."""
        t = transforms()
        out, channels = weight.shape[:2]
        transformed = t.weight @ weight.double().reshape(out * channels, 9).t()  # (36, out * in)
        offset = None if bias is None else (t.bias[:, None] * bias.double()).flatten().to(weight.dtype)
        products = onednn.Convolution.of(
            transformed.view(-1, channels, 1, 1).to(weight.dtype), offset, (0, 0), groups=_TILE**2, size=(_TILES, 1)
        )
        return cls(t.tile.to(weight.dtype), t.result.to(weight.dtype), products, relu)

    def __call__(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        frame = Frame.of(x, (batch, height, width, channels))
        frame.inside.copy_(x)
        return self.framed(frame)

    def framed(self, frame: Frame) -> Tensor:
        """Of a map that was written where this wants it."""
        (batch, height, width, _), down, across = frame.inside.shape, frame.down, frame.across
        tiles = _tiles(frame.whole, down, across)
        out = self.products.weight.shape[0] // _TILE**2
        y = frame.whole.new_empty(batch, down, _RESULT, across, _RESULT, out)
        rows = max(1, _TILES // across)
        for image, result in zip(tiles, y, strict=True):
            for start in range(0, down, rows):
                part = slice(start, start + rows)
                squares = self._squares(image[part]).transpose(1, 2)  # (rows, 4, across, 4, out)
                if self.relu:
                    torch.clamp_min(squares, 0.0, out=result[part])
                else:
                    result[part].copy_(squares)
        return y.view(batch, _RESULT * down, _RESULT * across, out)[:, :height, :width].contiguous()

    def _squares(self, tiles: Tensor) -> Tensor:
        """(rows, across, 6, 6, in) -> (rows, across, 4, 4, out)."""
        rows, across, *_, channels = tiles.shape
        count = rows * across
        v = torch.bmm(self.tile.expand(count, -1, -1), tiles.reshape(count, _TILE**2, channels))
        m = self.products(v.view(1, count, 1, -1)).reshape(count, _TILE**2, -1)
        return torch.bmm(self.result.expand(count, -1, -1), m).view(rows, across, _RESULT, _RESULT, -1)


def same_convolution(weight: Tensor, bias: Tensor | None, relu: bool) -> Winograd | onednn.Convolution:
    """A convolution with "same" padding, weight (out, in, h, w), by whichever algorithm is faster."""
    height, width = weight.shape[2:]
    channels = weight.shape[:2]
    suits = (height, width) == (3, 3) and min(channels) >= LEAST_CHANNELS and max(channels) <= MOST_CHANNELS
    if suits and weight.dtype == torch.float32 and why_not_on_a_cpu("winograd") is None:
        return Winograd.of(weight, bias, relu)
    return onednn.Convolution.of(weight, bias, (height // 2, width // 2), activation="relu" if relu else "none")


def _tiles(x: Tensor, down: int, across: int) -> Tensor:
    """The tiles (B, down, across, 6, 6, C) of a padded map (B, 4 down + 2, 4 across + 2, C), which overlap."""
    image, row, column, channel = x.stride()
    size = (x.shape[0], down, across, _TILE, _TILE, x.shape[3])
    return x.as_strided(size, (image, _RESULT * row, _RESULT * column, row, column, channel))
