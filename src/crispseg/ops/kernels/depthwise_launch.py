"""Launches the depthwise kernels, forward and backward: shapes, strides, and how the work is cut into programs."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from crispseg.ops.kernels import depthwise as kernels
from crispseg.ops.kernels import depthwise_gradients as gradients
from crispseg.ops.kernels import normalize_gradients
from crispseg.ops.kernels.early import early

_BUSY = 512  # programs below which a large GPU has idle processors; strips get shorter until there are as many
_HELD = 8  # channels that a thread loads at once: up to so many elements, it works on one pixel
_PARTS = 10  # what a strip leaves of the weight's and the bias' gradients: nine taps and the bias


class Tiles(NamedTuple):
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
    tiles: Tiles | None = None,
) -> Tensor:
    """act(conv(x) + bias) (+ x): (B, H, W, C) -> (B, H', W', C)."""
    x = _pixels_contiguous(x)
    out = x.new_empty(out_shape(x, stride))
    _convolve(x, weight, bias, None, out, None, residual, activation, stride, tiles)
    return out


def forward_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: tuple[Tensor, Tensor, float], tiles: Tiles | None = None
) -> tuple[Tensor, Tensor]:
    """x + conv(x) + bias, and its LayerNorm with `norm` = (weight, bias, eps)."""
    x = _pixels_contiguous(x)
    out, normed = x.new_empty(x.shape), x.new_empty(x.shape)
    if tiles is None:
        channels = triton.next_power_of_2(x.shape[-1])
        width = 4 if channels == 256 else max(1, 512 // channels)
        tiles = _with_rows(out, width, channels, (8, 4, 2, 1) if channels > 128 else (4, 2, 1))
    _convolve(x, weight, bias, None, out, (normed, *norm), True, "none", 1, tiles)
    return out, normed


def backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: bool,
    activation: str,
    stride: int,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients for x, weight and bias, each in its own dtype; `gradient` is that of `forward`'s result."""
    x, weight, gradient = _pixels_contiguous(x), _taps_even(weight), gradient.contiguous()
    g = gradient
    if activation != "none":
        g = torch.empty_like(gradient)
        _convolve(x, weight, bias, gradient, g, None, False, activation, stride, None)
    batch, out_height, out_width, channels = g.shape
    tiles = tiles or _with_rows(g, 8, _channel_block(channels), (32, 16, 8, 4))
    grid = _grid(g, tiles)
    strips = grid[0] * batch
    dx = x.new_empty(x.shape)
    parts = torch.empty((strips, _PARTS, channels), dtype=torch.float32, device=x.device)
    strides, align = _aligned(x)
    gradients.gradients[grid](
        g, x, weight, dx, parts, x.shape[1], x.shape[2], out_height, out_width, channels, *strides,
        weight.stride(0), weight.stride(3), STRIDE=stride, RESIDUAL=residual and activation == "none", ALIGN=align,
        WIDTH=tiles.width, CHANNELS=tiles.channels, ROWS=tiles.rows, num_warps=tiles.warps,
    )  # fmt: skip
    dw = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    db = None if bias is None else torch.empty_like(bias)
    gradients.add_parts[(triton.cdiv(channels, 32), _PARTS)](parts, dw, db, strips, channels, STRIPS=64, CHANNELS=32)
    return dx.add_(gradient) if residual and activation != "none" else dx, dw, db


def backward_norm(
    gradient: Tensor | None,
    of_normed: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    y: Tensor,
    norm: tuple[Tensor, Tensor, float],
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """Gradients for x, weight and bias, and those of the norm's weight and bias, given those of `forward_norm`'s two
    results, the first of which is y."""
    dy, dgamma, dbeta = normalize_gradients.gradients(of_normed, y, *norm, added=gradient)
    return *backward(dy, x, weight, bias, True, "none", 1), dgamma, dbeta


def out_shape(x: Tensor, stride: int) -> tuple[int, ...]:
    batch, height, width, channels = x.shape
    return batch, (height + stride - 1) // stride, (width + stride - 1) // stride, channels


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gradient: Tensor | None,
    out: Tensor,
    norm: tuple[Tensor, Tensor, Tensor, float] | None,
    residual: bool,
    activation: str,
    stride: int,
    tiles: Tiles | None,
) -> None:
    channels, weight = x.shape[-1], _taps_even(weight)
    if tiles is None:
        block = _channel_block(channels)
        tiles = _with_rows(out, 512 // block, block, (8, 4, 2, 1))
    normed, gamma, beta, eps = norm or (None, None, None, 0.0)
    (image, row, _), align = _aligned(x)
    kernels.convolve[_grid(out, tiles)](
        x, weight, bias, gradient, out, normed, gamma, beta, eps, x.shape[1], x.shape[2], out.shape[1], out.shape[2],
        channels, image, row, weight.stride(0), weight.stride(3), PIXEL=x.stride(2), STRIDE=stride,
        ACTIVATION=activation, RESIDUAL=residual, ALIGN=align, WIDTH=tiles.width, CHANNELS=tiles.channels,
        ROWS=tiles.rows, SPREAD=tiles.width * tiles.channels <= _HELD * 32 * tiles.warps,
        EXACT=channels % tiles.channels == 0, num_warps=tiles.warps, **early(x.device),
    )  # fmt: skip


def _channel_block(channels: int) -> int:
    return 64 if channels % 64 == 0 else min(32, triton.next_power_of_2(channels))


def _with_rows(out: Tensor, width: int, channels: int, choices: tuple[int, ...], warps: int = 4) -> Tiles:
    """The tallest strips that still keep the device busy; no wider than the map."""
    width = min(width, triton.next_power_of_2(out.shape[2]))
    for rows in choices:
        tiles = Tiles(width, channels, rows, warps)
        if math.prod(_grid(out, tiles)) >= _BUSY:
            break
    return tiles


def _grid(out: Tensor, tiles: Tiles) -> tuple[int, int, int]:
    batch, height, width, channels = out.shape
    strips = triton.cdiv(height, tiles.rows) * triton.cdiv(width, tiles.width)
    return strips, triton.cdiv(channels, tiles.channels), batch


def _pixels_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


def _taps_even(weight: Tensor) -> Tensor:
    """A weight (C, 1, 3, 3) whose nine taps are evenly spaced in memory."""
    return weight if weight.stride(2) == 3 * weight.stride(3) else weight.contiguous()


def _aligned(x: Tensor) -> tuple[tuple[int, ...], int]:
    """Strides of image, row and pixel divided by their common power of two (16 at most), and that power."""
    align = math.gcd(16, *x.stride()[:3])
    return tuple(s // align for s in x.stride()[:3]), align
