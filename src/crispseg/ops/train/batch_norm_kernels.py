# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""BatchNorm over the rows of a matrix (pixels, channels) in Triton: statistics, result and gradients.

Statistics are made in parts, each of which keeps its mean and its sum of squares about that mean, so that no digits
are lost where the mean is large; a small kernel joins them and keeps the running statistics.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.column_sums import Blocks, add_column_parts
from crispseg.ops.common.custom import custom_op, differentiable
from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.rounding import widened
from crispseg.ops.train.batch_norm import batch_norm

_JOINED = 4096  # parts x channels that a program joins
# The most channels of a block, its elements, and the warps of the program that works on it.
_STATISTICS, _RESULT, _SUMS, _GRADIENT = (64, 4096, 8), (64, 4096, 4), (64, 2048, 4), (64, 2048, 4)


@triton.jit
def _statistics(
    x, parts, rows, chunk, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    """The mean of a part, and the sum of squares about it: parts (parts, 2, WIDTH)."""
    after_the_kernel_before(DEPENDENT)
    part = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    used = column < WIDTH
    x += part * chunk * WIDTH
    count = tl.minimum(chunk, rows - part * chunk).to(tl.int32)
    near = tl.load(x + column, mask=used, other=0.0).to(tl.float32)
    total, squares = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    place = x + row[:, None] * WIDTH + column[None, :]
    for start in range(0, count, ROWS):
        inside = (start + row < count)[:, None] & used[None, :]
        value = tl.where(inside, widened(tl.load(place, mask=inside, other=0.0)) - near[None, :], 0.0)
        total += value
        squares += value * value
        place += ROWS * WIDTH
    mean = tl.sum(total, axis=0) / count
    spread = tl.maximum(tl.sum(squares, axis=0) - mean * mean * count, 0.0)
    parts += part * 2 * WIDTH + column
    tl.store(parts, near + mean, mask=used)
    tl.store(parts + WIDTH, spread, mask=used)


@triton.jit
def _join(
    parts, mean, scale, running_mean, running_variance, batches, rows, chunk, count, momentum, eps,
    WIDTH: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / sqrt(variance + eps) of all rows; the running statistics move towards them."""
    after_the_kernel_before(DEPENDENT)
    part, column = tl.arange(0, PARTS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    used = column < WIDTH
    inside = (part < count)[:, None] & used[None, :]
    place = parts + part[:, None] * 2 * WIDTH + column[None, :]
    means = tl.load(place, mask=inside, other=0.0)
    spreads = tl.load(place + WIDTH, mask=inside, other=0.0)
    weight = tl.maximum(tl.minimum(chunk, rows - part * chunk), 0).to(tl.float32)[:, None]
    centre = tl.sum(means * weight, axis=0) / rows
    away = tl.where(inside, means - centre[None, :], 0.0)
    spread = tl.sum(spreads + away * away * weight, axis=0)
    tl.store(mean + column, centre, mask=used)
    tl.store(scale + column, 1 / tl.sqrt(spread / rows + eps), mask=used)

    kind = running_mean.dtype.element_ty
    before = tl.load(running_mean + column, mask=used, other=0.0).to(tl.float32)
    tl.store(running_mean + column, (before + momentum * (centre - before)).to(kind), mask=used)
    before = tl.load(running_variance + column, mask=used, other=0.0).to(tl.float32)
    after = before + momentum * (spread / (rows - 1) - before)
    tl.store(running_variance + column, after.to(kind), mask=used)
    if tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit
def _vector(pointer, column, WIDTH: tl.constexpr):
    """One number per channel, (1, channels) in float32."""
    return tl.load(pointer + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _normalise(
    x, mean, scale, weight, bias, y, rows, WIDTH: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    after_the_kernel_before(DEPENDENT)
    first = tl.program_id(0).to(tl.int64) * ROWS
    row, column = tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (first + row < rows)[:, None] & (column < WIDTH)[None, :]
    place = row[:, None] * WIDTH + column[None, :]
    value = widened(tl.load(x + first * WIDTH + place, mask=inside, other=0.0)) - _vector(mean, column, WIDTH)
    value = value * (_vector(scale, column, WIDTH) * _vector(weight, column, WIDTH)) + _vector(bias, column, WIDTH)
    if RELU:
        value = tl.where(value < 0, 0.0, value)  # NaN stays, as in torch's
    tl.store(y + first * WIDTH + place, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _before_relu(gradient, normed, weight, bias, RELU: tl.constexpr):
    if RELU:
        gradient = tl.where(normed * weight + bias > 0, gradient, 0.0)
    return gradient


@triton.jit
def _sums(
    g, x, mean, scale, weight, bias, parts, rows, chunk, WIDTH: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A part's sums of the gradient, and of the gradient times the normalised x: parts (parts, 2, WIDTH)."""
    after_the_kernel_before(DEPENDENT)
    part = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    used = column < WIDTH
    count = tl.minimum(chunk, rows - part * chunk).to(tl.int32)
    centre, factor = _vector(mean, column, WIDTH), _vector(scale, column, WIDTH)
    gain, shift = _vector(weight, column, WIDTH), _vector(bias, column, WIDTH)
    total, products = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    g, x = g + part * chunk * WIDTH, x + part * chunk * WIDTH
    place = row[:, None] * WIDTH + column[None, :]
    for start in range(0, count, ROWS):
        inside = (start + row < count)[:, None] & used[None, :]
        gradient = widened(tl.load(g + place, mask=inside, other=0.0))
        normed = (widened(tl.load(x + place, mask=inside, other=0.0)) - centre) * factor
        gradient = _before_relu(gradient, normed, gain, shift, RELU)
        total += gradient
        products += gradient * normed
        place += ROWS * WIDTH
    parts += part * 2 * WIDTH + column
    tl.store(parts, tl.sum(total, axis=0), mask=used)
    tl.store(parts + WIDTH, tl.sum(products, axis=0), mask=used)


@triton.jit
def _input_gradient(
    g, x, mean, scale, weight, bias, total, products, dx, rows, WIDTH: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """dx = weight / sigma (g - mean(g) - normalised x mean(g normalised x))."""
    after_the_kernel_before(DEPENDENT)
    first = tl.program_id(0).to(tl.int64) * ROWS
    row, column = tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (first + row < rows)[:, None] & (column < WIDTH)[None, :]
    place = row[:, None] * WIDTH + column[None, :]
    gradient = widened(tl.load(g + first * WIDTH + place, mask=inside, other=0.0))
    normed = widened(tl.load(x + first * WIDTH + place, mask=inside, other=0.0)) - _vector(mean, column, WIDTH)
    factor, gain = _vector(scale, column, WIDTH), _vector(weight, column, WIDTH)
    normed *= factor
    gradient = _before_relu(gradient, normed, gain, _vector(bias, column, WIDTH), RELU)
    gradient -= _vector(total, column, WIDTH) / rows + normed * (_vector(products, column, WIDTH) / rows)
    tl.store(dx + first * WIDTH + place, (gradient * (factor * gain)).to(dx.dtype.element_ty), mask=inside)


def _rows(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B H W, C), without a copy where channels lie side by side."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).contiguous()


def _empty_map(x: Tensor, *rest: Any) -> Tensor:
    """No view of anything: whoever gets it may change it in place, as a ReLU of another's does."""
    return torch.empty_like(x, memory_format=torch.channels_last)


@batch_norm.kernel
def _(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    *running, relu = rest  # what `_statistics_` takes
    return _forward(x, weight, bias, *_statistics_(x.detach(), *running), relu)


def _two_numbers(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[1], dtype=torch.float32), x.new_empty(x.shape[1], dtype=torch.float32)


# An operator that changes its arguments may not have gradients, so the statistics are one of their own, and the
# gradient of the other accounts for their being x's.


@custom_op("batch_statistics", like=_two_numbers, changes=("running_mean", "running_variance", "batches"))
def _statistics_(
    x: Tensor, running_mean: Tensor, running_variance: Tensor, batches: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(variance + eps) of each channel; the running statistics are updated."""
    mean, scale = _two_numbers(x)
    x = _rows(x)
    rows, width = x.shape
    blocks = Blocks.of(x, *_STATISTICS)
    chunk, parts = blocks.parts(sums=2)
    _statistics[(len(parts), blocks.across)](x, parts, rows, chunk, **blocks.options)
    held = triton.next_power_of_2(len(parts))
    columns = min(64, _JOINED // held)
    _join[(triton.cdiv(width, columns),)](
        parts, mean, scale, running_mean, running_variance, batches, rows, chunk, len(parts), momentum, eps,
        WIDTH=width, PARTS=held, COLUMNS=columns, num_warps=4, **launch_options(x.device),
    )  # fmt: skip
    return mean, scale


@custom_op("batch_norm", like=_empty_map)
def _forward(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, relu: bool) -> Tensor:
    """(x - mean) scale weight + bias, and its ReLU if wanted."""
    out = _empty_map(x)
    x, y = _rows(x), _rows(out)
    blocks = Blocks.of(x, *_RESULT)
    _normalise[blocks.grid](x, mean, scale, weight, bias, y, len(x), RELU=relu, **blocks.options)
    return out


@custom_op(
    "batch_norm_backward",
    like=lambda g, x, weight, bias, *rest: [_empty_map(x), weight.new_empty(weight.shape), bias.new_empty(bias.shape)],
)
def _backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, relu: bool
) -> list[Tensor]:
    """Of x, weight and bias; mean and scale are x's own."""
    out = _empty_map(x)
    g, x, dx = _rows(gradient), _rows(x), _rows(out)
    rows, width = x.shape
    blocks = Blocks.of(x, *_SUMS)
    chunk, parts = blocks.parts(sums=2)
    _sums[(len(parts), blocks.across)](
        g, x, mean, scale, weight, bias, parts, rows, chunk, RELU=relu, **blocks.options
    )  # fmt: skip
    db, dw = parts.new_empty(width), parts.new_empty(width)
    add_column_parts(parts, db, dw)
    blocks = Blocks.of(x, *_GRADIENT)
    _input_gradient[blocks.grid](
        g, x, mean, scale, weight, bias, db, dw, dx, rows, RELU=relu, **blocks.options
    )  # fmt: skip
    return [out, dw.to(weight.dtype), db.to(bias.dtype)]


def _formula(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, relu: bool) -> Tensor:
    """With the mean taken again, and what the variance may change by (nothing, but it has a gradient)."""
    rows = x.float().movedim(1, -1)
    variance, average = torch.var_mean(rows, (0, 1, 2), correction=0)
    inverse = (scale.square().reciprocal() + variance - variance.detach()).rsqrt()
    y = ((rows - average) * inverse * weight + bias).movedim(-1, 1).to(x.dtype)
    return torch.relu(y) if relu else y


differentiable(_forward, _backward, batch_norm, formula=_formula)
