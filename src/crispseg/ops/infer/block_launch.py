"""Launches the kernels of `block.py`: how the work is cut into programs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from crispseg.ops.common.dependent_launch import launch_options
from crispseg.ops.infer import block_kernels as kernels
from crispseg.ops.infer.block import MLP, Start
from crispseg.ops.maps import depthwise_launch
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


def conv_norm(x: Tensor, start: Start) -> tuple[Tensor, Tensor]:
    with torch.cuda.device_of(x):
        return depthwise_launch.forward_norm(x, start.weight, start.bias, (start.gamma, start.beta, start.eps))


def conv_norm_project(
    x: Tensor, start: Start, matrix: Tensor, tiles: BlockTiles | None = None
) -> tuple[Tensor, Tensor]:
    x, out = x.contiguous(), matrix.shape[1]
    tiles = tiles or _PROJECT[x.shape[3]]
    pitch = triton.cdiv(out, _LINE) * _LINE
    y, wide = torch.empty_like(x), x.new_empty(*x.shape[:-1], pitch)
    with torch.cuda.device_of(x):
        kernels.conv_norm_project[_grid(x, tiles)](
            x, *_start(start), matrix.t().contiguous(), y, wide, *x.shape[1:3],
            C=x.shape[3], OUT=out, OUT_STEP=pitch, **_options(x, tiles),
        )  # fmt: skip
    return y, wide[..., :out]


def conv_norm_mlp(x: Tensor, start: Start, weights: MLP, tiles: BlockTiles | None = None) -> Tensor:
    x, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    tiles = tiles or _MLP[x.shape[3]]
    fc2 = weights.fc2 if weights.fc2.stride(0) == 1 else weights.fc2.t().contiguous().t()
    with torch.cuda.device_of(x):
        kernels.conv_norm_mlp[_grid(x, tiles)](
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
