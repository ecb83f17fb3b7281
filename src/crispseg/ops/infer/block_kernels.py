"""Half a block in one Triton kernel: depthwise 3x3 convolution with residual, LayerNorm, and the products that follow.

`block.py` says what is computed. A program takes a patch of an image, ROWS x COLUMNS pixels with all their channels
C: neighbouring patches share only their rims, which meet in the L2 cache. Sums are float32; what enters a matrix
product is rounded to the map's precision. Offsets within a patch fit 32 bits, all others are taken in 64.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.rounding import INTERPRETED, like, multiply, widened
from crispseg.ops.infer import block
from crispseg.ops.infer.block import MLP, Start
from crispseg.ops.maps import depthwise_kernels
from crispseg.ops.maps.depthwise import packed

_LINE = 64  # elements of half precision in a cache line: rows of a product start at multiples of it


class BlockTiles(NamedTuple):
    """A program's patch of pixels, the columns it multiplies at a time, its warps and stages of loads; and the
    registers of a thread, if they are limited so that more programs share a multiprocessor."""

    rows: int
    columns: int
    chunk: int
    warps: int
    stages: int = 2
    registers: int | None = None


# By channels.
_PROJECT = {32: BlockTiles(8, 16, 64, 8), 64: BlockTiles(8, 16, 64, 8, 3, 128)}
_MLP = {32: BlockTiles(8, 16, 64, 8), 64: BlockTiles(8, 8, 64, 4, 2, 128), 128: BlockTiles(8, 16, 64, 8)}


@triton.jit
def _channels(pointer, channel, TOKENS: tl.constexpr, C: tl.constexpr, SPREAD: tl.constexpr):
    """One number per channel, float32. SPREAD has every thread load those it needs, in place of an exchange."""
    if SPREAD:
        numbers = tl.load(pointer + tl.broadcast_to(channel[None, :], (TOKENS, C)))
    else:
        numbers = tl.load(pointer + channel)[None, :]
    return widened(numbers)


@triton.jit
def _twice_gelu(x):
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3)))."""
    inner = x * (0.7978845608028654 + 0.035677408136300125 * x * x)
    if INTERPRETED:
        tanh = 2 * tl.sigmoid(2 * inner) - 1
    else:
        tanh = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [inner], tl.float32, is_pure=True, pack=1)
    return x + x * tanh


@triton.jit
def _patch(height, width, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Where this program's patch starts in its map, and its pixels: their rows, columns, and offsets from there."""
    across = tl.cdiv(width, COLUMNS)
    top = tl.program_id(0) // across * ROWS
    left = tl.program_id(0) % across * COLUMNS
    token = tl.arange(0, ROWS * COLUMNS)
    start = ((tl.program_id(1).to(tl.int64) * height + top) * width + left) * C
    offset = (token // COLUMNS * width + token % COLUMNS) * C
    return start, top + token // COLUMNS, left + token % COLUMNS, offset


@triton.jit
def _convolve_and_norm(
    x, weight, bias, gamma, beta, eps, row, column, offset, height, width,
    TOKENS: tl.constexpr, C: tl.constexpr, SPREAD: tl.constexpr,
):  # fmt: skip
    """x + conv(x) + bias and its LayerNorm, both float32 (TOKENS, C)."""
    channel = tl.arange(0, C)
    total = tl.zeros((TOKENS, C), tl.float32)
    for line in tl.range(3, num_stages=1):  # a loop, as registers for nine loads at once would crowd out programs
        above = row + line - 1
        inside_rows = (above >= 0) & (above < height)
        for side in tl.static_range(3):
            beside = column + side - 1
            inside = inside_rows & (beside >= 0) & (beside < width)
            place = offset + ((line - 1) * width + side - 1) * C
            pixels = tl.load(x + place[:, None] + channel[None, :], mask=inside[:, None], other=0.0)
            scale = _channels(weight + (line * 3 + side) * C, channel, TOKENS, C, SPREAD)
            if side == 1:
                scale += tl.where(line == 1, 1.0, 0.0)  # the residual
            total += widened(pixels) * scale
    total += _channels(bias, channel, TOKENS, C, SPREAD)
    mean = tl.sum(total, axis=1) / C
    centred = total - mean[:, None]
    normed = centred * tl.rsqrt(tl.sum(centred * centred, axis=1) / C + eps)[:, None]
    normed *= _channels(gamma, channel, TOKENS, C, SPREAD)
    return total, normed + _channels(beta, channel, TOKENS, C, SPREAD)


@triton.jit
def _conv_norm_mlp_kernel(
    x, weight, bias, gamma, beta, eps, fc1, fc1_bias, fc2, fc2_bias, out, height, width,
    C: tl.constexpr, HIDDEN: tl.constexpr, FC2_STEP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, SPREAD: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """CHUNK hidden units at a time: their sum over channels, GELU, and what they add to the output."""
    after_the_kernel_before(DEPENDENT)
    TOKENS: tl.constexpr = ROWS * COLUMNS
    start, row, column, offset = _patch(height, width, C, ROWS, COLUMNS)
    total, normed = _convolve_and_norm(
        x + start, weight, bias, gamma, beta, eps, row, column, offset, height, width, TOKENS, C, SPREAD
    )
    normed = like(normed, x)
    channel, unit = tl.arange(0, C), tl.arange(0, CHUNK)
    total += tl.load(fc2_bias + channel).to(tl.float32)[None, :]
    total *= 2
    into = fc1 + unit[None, :] * C + channel[:, None]  # (C, CHUNK), channels side by side in memory
    outof = fc2 + channel[None, :] * FC2_STEP + unit[:, None]  # (CHUNK, C), units side by side
    for first in range(0, HIDDEN, CHUNK):
        hidden = multiply(normed, tl.load(into + first * C), tl.zeros((TOKENS, CHUNK), tl.float32))
        hidden += tl.load(fc1_bias + first + unit).to(tl.float32)[None, :]
        total = multiply(like(_twice_gelu(hidden), x), tl.load(outof + first), total)
    inside = (row < height) & (column < width)
    place = out + start + offset[:, None] + channel[None, :]
    tl.store(place, like(total * 0.5, x), mask=inside[:, None])


@triton.jit
def _conv_norm_project_kernel(
    x, weight, bias, gamma, beta, eps, matrix, y, out, height, width,
    C: tl.constexpr, OUT: tl.constexpr, OUT_STEP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, SPREAD: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """CHUNK columns of the product at a time."""
    after_the_kernel_before(DEPENDENT)
    TOKENS: tl.constexpr = ROWS * COLUMNS
    start, row, column, offset = _patch(height, width, C, ROWS, COLUMNS)
    total, normed = _convolve_and_norm(
        x + start, weight, bias, gamma, beta, eps, row, column, offset, height, width, TOKENS, C, SPREAD
    )
    normed = like(normed, x)
    channel = tl.arange(0, C)
    inside = (row < height) & (column < width)
    tl.store(y + start + offset[:, None] + channel[None, :], like(total, x), mask=inside[:, None])
    out += start // C * OUT_STEP
    offset = offset // C * OUT_STEP
    for first in range(0, OUT, CHUNK):
        unit = first + tl.arange(0, CHUNK)
        place = matrix + unit[None, :] * C + channel[:, None]  # (C, CHUNK), channels side by side in memory
        factor = tl.load(place) if OUT % CHUNK == 0 else tl.load(place, mask=(unit < OUT)[None, :], other=0.0)
        result = multiply(normed, factor, tl.zeros((TOKENS, CHUNK), tl.float32))
        mask = inside[:, None] & (unit < OUT)[None, :]
        tl.store(out + offset[:, None] + unit[None, :], like(result, x), mask=mask)


@block.conv_norm.kernel
def conv_norm(x: Tensor, start: Start) -> tuple[Tensor, Tensor]:
    with torch.cuda.device_of(x):
        return depthwise_kernels.forward_norm(x, start.weight, start.bias, (start.gamma, start.beta, start.eps))


@block.conv_norm_project.kernel
def conv_norm_project(
    x: Tensor, start: Start, matrix: Tensor, tiles: BlockTiles | None = None
) -> tuple[Tensor, Tensor]:
    x, out = x.contiguous(), matrix.shape[1]
    tiles = tiles or _PROJECT[x.shape[3]]
    pitch = triton.cdiv(out, _LINE) * _LINE
    y, wide = torch.empty_like(x), x.new_empty(*x.shape[:-1], pitch)
    with torch.cuda.device_of(x):
        _conv_norm_project_kernel[_grid(x, tiles)](
            x, *_start(start), matrix.t().contiguous(), y, wide, *x.shape[1:3],
            C=x.shape[3], OUT=out, OUT_STEP=pitch, **_options(x, tiles),
        )  # fmt: skip
    return y, wide[..., :out]


@block.conv_norm_mlp.kernel
def conv_norm_mlp(x: Tensor, start: Start, weights: MLP, tiles: BlockTiles | None = None) -> Tensor:
    x, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    tiles = tiles or _MLP[x.shape[3]]
    fc2 = weights.fc2 if weights.fc2.stride(0) == 1 else weights.fc2.t().contiguous().t()
    with torch.cuda.device_of(x):
        _conv_norm_mlp_kernel[_grid(x, tiles)](
            x, *_start(start), weights.fc1.t().contiguous(), weights.fc1_bias, fc2, weights.fc2_bias, out,
            *x.shape[1:3], C=x.shape[3], HIDDEN=fc2.shape[0], FC2_STEP=fc2.stride(1), **_options(x, tiles),
        )  # fmt: skip
    return out


def _grid(x: Tensor, tiles: BlockTiles) -> tuple[int, int]:
    batch, height, width, _ = x.shape
    return triton.cdiv(height, tiles.rows) * triton.cdiv(width, tiles.columns), batch


def _options(x: Tensor, tiles: BlockTiles) -> dict[str, Any]:
    """Where a thread holds eight channels of one pixel, it loads their weights itself."""
    spread = tiles.rows * tiles.columns * x.shape[3] <= 8 * 32 * tiles.warps
    limit = {} if tiles.registers is None else {"maxnreg": tiles.registers}
    return {
        "ROWS": tiles.rows, "COLUMNS": tiles.columns, "CHUNK": tiles.chunk, "SPREAD": spread,
        "num_warps": tiles.warps, "num_stages": tiles.stages, **limit, **launch_options(x.device),
    }  # fmt: skip


def _start(start: Start) -> tuple[Any, ...]:
    taps = start.weight if start.weight.stride(0) == 1 else packed(start.weight)
    return taps, *start[1:]
