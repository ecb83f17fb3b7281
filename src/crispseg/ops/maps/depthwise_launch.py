"""Launches the depthwise kernels, forward and backward: shapes, strides, and how the work is cut into programs."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from crispseg.ops.common.dependent_launch import launch_options
from crispseg.ops.common.hardware import multiprocessors
from crispseg.ops.maps import depthwise_gradients as gradients
from crispseg.ops.maps import depthwise_kernels as kernels

_BUSY = 512  # programs below which a large GPU has idle processors; strips get shorter until there are as many
_HELD = 8  # channels that a thread loads at once: up to so many elements, it works on one pixel
_PARTS = 10  # what a strip leaves of the weight's and the bias' gradients: nine taps and the bias
_RESIDENT = 4  # programs of the kernel of gradients that run on a multiprocessor at once
_BESIDES = 5  # rows that its strips cost beside their own: the two around them, the taps and the sums
_HEIGHTS = (64, 32, 16, 8, 4)  # of its strips


class DepthwiseTiles(NamedTuple):
    """How the work is cut: pixels along a row, channels, rows of a strip; and the warps of a program."""

    width: int
    channels: int
    rows: int
    warps: int = 4


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: bool,
    activation: str,
    stride: int,
    tiles: DepthwiseTiles | None = None,
) -> Tensor:
    """act(conv(x) + bias) (+ x): (B, H, W, C) -> (B, H', W', C)."""
    x = _pixels_contiguous(x)
    batch, height, width, channels = x.shape
    out = x.new_empty(batch, triton.cdiv(height, stride), triton.cdiv(width, stride), channels)
    _convolve(x, weight, bias, None, out, residual, activation, stride, tiles)
    return out


def forward_norm(
    x: Tensor, weight: Tensor, bias: Tensor, norm: tuple[Tensor, Tensor, float], tiles: DepthwiseTiles | None = None
) -> tuple[Tensor, Tensor]:
    """x + conv(x) + bias, and its LayerNorm with `norm` = (weight, bias, eps): all channels in one program."""
    x = _pixels_contiguous(x)
    out, normed = x.new_empty(x.shape), x.new_empty(x.shape)
    if tiles is None:
        channels = triton.next_power_of_2(x.shape[-1])
        width = 4 if channels == 256 else max(1, 512 // channels)
        tiles = _with_rows(out, width, channels, (8, 4, 2, 1) if channels > 128 else (4, 2, 1))
    _convolve(x, weight, bias, None, out, True, "none", 1, tiles, (normed, *norm))
    return out, normed


def backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: bool,
    activation: str,
    stride: int,
    tiles: DepthwiseTiles | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients for x, weight and bias, each in its own dtype; `gradient` is that of `forward`'s result. That for x is
    written to `out` if given, which may be a view into a wider map."""
    x, weight, gradient = _pixels_contiguous(x), _packed(weight), gradient.contiguous()
    g = gradient
    if activation != "none":
        g = torch.empty_like(gradient)
        _convolve(x, weight, bias, gradient, g, False, activation, stride, None)
    batch, out_height, out_width, channels = g.shape
    together = 4 if stride == 1 else 1  # columns of a thread
    tiles = tiles or _gradient_tiles(g, together)
    grid = _grid(g, tiles)
    strips = grid[0] * batch
    dx = x.new_empty(x.shape) if out is None else out
    parts = torch.empty((strips, _PARTS, channels), dtype=torch.float32, device=x.device)
    (image, row, _), align = _aligned(x)
    (dx_image, dx_row, _), dx_align = _aligned(dx)
    gradients.gradients[grid](
        g, x, weight, dx, parts, x.shape[1], x.shape[2], out_height, out_width, image, row, dx_image, dx_row,
        weight.stride(0), weight.stride(3), C=channels, PIXEL=x.stride(2), ALIGN=align, DX_PIXEL=dx.stride(2),
        DX_ALIGN=dx_align, STRIDE=stride, RESIDUAL=residual and activation == "none", PIXELS=together,
        WIDTH=tiles.width // together, CHANNELS=tiles.channels, ROWS=tiles.rows,
        EXACT=channels % tiles.channels == 0, num_warps=tiles.warps, **launch_options(x.device),
    )  # fmt: skip
    dw = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    db = None if bias is None else torch.empty_like(bias)
    gradients.add_parts[(triton.cdiv(channels, 16), _PARTS)](
        parts, dw, db, strips, channels, STRIPS=128, CHANNELS=16, num_warps=4, **launch_options(x.device)
    )
    return dx.add_(gradient) if residual and activation != "none" else dx, dw, db


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gradient: Tensor | None,
    out: Tensor,
    residual: bool,
    activation: str,
    stride: int,
    tiles: DepthwiseTiles | None,
    norm: tuple[Tensor | None, Tensor | None, Tensor | None, float] = (None, None, None, 0.0),
) -> None:
    channels, weight = x.shape[-1], _packed(weight)
    if tiles is None:
        block = _channel_block(channels)
        tiles = _with_rows(out, 512 // block, block, (8, 4, 2, 1) if gradient is None else (16, 8, 4, 2, 1))
    (image, row, _), align = _aligned(x)
    kernels.convolve[_grid(out, tiles)](
        x, weight, bias, gradient, out, *norm, x.shape[1], x.shape[2], out.shape[1], out.shape[2], channels, image,
        row, weight.stride(0), weight.stride(3), PIXEL=x.stride(2), STRIDE=stride, ACTIVATION=activation,
        RESIDUAL=residual, ALIGN=align, WIDTH=tiles.width, CHANNELS=tiles.channels, ROWS=tiles.rows,
        SPREAD=tiles.width * tiles.channels <= _HELD * 32 * tiles.warps,
        EXACT=channels % tiles.channels == 0, num_warps=tiles.warps, **launch_options(x.device),
    )  # fmt: skip


def _channel_block(channels: int) -> int:
    return 64 if channels % 64 == 0 else min(32, triton.next_power_of_2(channels))


def _with_rows(out: Tensor, width: int, channels: int, choices: tuple[int, ...]) -> DepthwiseTiles:
    """The tallest strips that still keep the device busy; no wider than the map."""
    width = min(width, triton.next_power_of_2(out.shape[2]))
    for rows in choices:
        tiles = DepthwiseTiles(width, channels, rows)
        if math.prod(_grid(out, tiles)) >= _BUSY:
            break
    return tiles


def _gradient_tiles(g: Tensor, together: int) -> DepthwiseTiles:
    """Strips of the height that takes the fewest turns, by the rows of each."""
    channels = _channel_block(g.shape[3])
    width = min((1024 if together > 1 else 512) // channels, triton.next_power_of_2(max(g.shape[2], together)))
    places = _RESIDENT * multiprocessors(g.device)

    def rows_in_turn(tiles: DepthwiseTiles) -> int:
        return triton.cdiv(math.prod(_grid(g, tiles)), places) * (tiles.rows + _BESIDES)

    return min((DepthwiseTiles(width, channels, rows) for rows in _HEIGHTS), key=rows_in_turn)


def _grid(out: Tensor, tiles: DepthwiseTiles) -> tuple[int, int, int]:
    batch, height, width, channels = out.shape
    strips = triton.cdiv(height, tiles.rows) * triton.cdiv(width, tiles.width)
    return strips, triton.cdiv(channels, tiles.channels), batch


def _pixels_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


def _packed(weight: Tensor) -> Tensor:
    """A weight (C, 1, 3, 3) with its channels side by side in memory and its nine taps evenly spaced."""
    if weight.stride(0) == 1 and weight.stride(2) == 3 * weight.stride(3):
        return weight
    channels = weight.shape[0]
    taps, out = weight.reshape(channels, 9), weight.new_empty((9, channels))
    kernels.pack[(triton.cdiv(channels, 64),)](
        taps, out, channels, *taps.stride(), CHANNELS=64, **launch_options(out.device)
    )
    return out.t().view(weight.shape)


def _aligned(x: Tensor) -> tuple[tuple[int, ...], int]:
    """Strides of image, row and pixel divided by their common power of two (16 at most), and that power."""
    align = math.gcd(16, *x.stride()[:3])
    return tuple(s // align for s in x.stride()[:3]), align
