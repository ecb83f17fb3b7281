# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The linear layer and the MLP of `mlp.py`: products by torch, and what lies between them, and between those of their
gradients, in Triton.

h is the first product before its bias, which is added here in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.column_sums import Blocks, add_column_parts, column_part, column_sums, cut, relu_gradients
from crispseg.ops.common.custom import custom_op, differentiable, gradients_of_first
from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.rounding import widened
from crispseg.ops.train import mlp

_FORWARD = 128, 4096, 4  # the most hidden units of a block, its elements, and the warps of the program that works on it
_COLUMNS = 128  # hidden units of a block in the backward pass


@triton.jit
def _below(h):
    """The normal distribution's share below h, and its density times the square root of 2 pi.

    By a rational polynomial (Abramowitz and Stegun 7.1.26) to within 1e-7, from the side of the smaller tail, so that
    small shares keep their digits; it shares the exponential with the density.
    """
    density = tl.exp(h * h * -0.5)
    t = 1.0 / (1.0 + 0.2316418882 * tl.abs(h))  # 0.3275911 / sqrt(2)
    tail = t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
    tail *= density
    return tl.where(h > 0, 1.0 - tail, tail), density


@triton.jit
def _gelu(
    h, bias, u, rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    after_the_kernel_before(DEPENDENT)
    first = tl.program_id(0).to(tl.int64) * ROWS
    row, column = tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (first + row < rows)[:, None] & (column < WIDTH)[None, :]
    h, u = h + first * WIDTH, u + first * WIDTH
    place = row[:, None] * WIDTH + column[None, :]
    x = widened(tl.load(h + place, mask=inside, other=0.0))
    x += tl.load(bias + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None, :]
    share, _ = _below(x)
    tl.store(u + place, (x * share).to(u.dtype.element_ty), mask=inside)


@triton.jit
def _gelu_gradients(
    du, h, bias, g, u, parts, rows, chunk, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """u = gelu(h + bias); dh = du gelu'(h + bias) in du's place; and a part's sums over rows of dh, then of g."""
    after_the_kernel_before(DEPENDENT)
    part, across = tl.program_id(0).to(tl.int64), tl.cdiv(HIDDEN, COLUMNS)
    count = tl.minimum(chunk, rows - part * chunk).to(tl.int32)
    parts += part * (HIDDEN + WIDTH)
    if tl.program_id(1) < across:
        row, column = tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        used = column < HIDDEN
        shift = tl.load(bias + column, mask=used, other=0.0).to(tl.float32)[None, :]
        start_of_part = part * chunk * HIDDEN  # a map may have more than 2**31 units, a part has fewer
        du, h, u = du + start_of_part, h + start_of_part, u + start_of_part
        place = row[:, None] * HIDDEN + column[None, :]
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(0, count, ROWS):
            inside = (start + row < count)[:, None] & used[None, :]
            x = widened(tl.load(h + place, mask=inside, other=0.0)) + shift
            gradient = widened(tl.load(du + place, mask=inside, other=0.0))
            share, density = _below(x)
            gradient *= share + x * density * 0.3989422804
            tl.store(u + place, (x * share).to(u.dtype.element_ty), mask=inside)
            tl.store(du + place, gradient.to(du.dtype.element_ty), mask=inside)
            total += gradient
            place += ROWS * HIDDEN
        tl.store(parts + column, tl.sum(total, axis=0), mask=used)
    else:
        column = (tl.program_id(1) - across) * COLUMNS + tl.arange(0, COLUMNS)
        sums = column_part(g + part * chunk * WIDTH, count, column, WIDTH, ROWS, COLUMNS)
        tl.store(parts + HIDDEN + column, sums, mask=column < WIDTH)


def gelu(h: Tensor, bias: Tensor) -> Tensor:
    """gelu(h + bias) of a contiguous h (rows, hidden), in its dtype."""
    u, blocks = torch.empty_like(h), Blocks.of(h, *_FORWARD)
    _gelu[blocks.grid](h, bias, u, len(h), **blocks.options)
    return u


def gelu_gradients_(du: Tensor, h: Tensor, bias: Tensor, g: Tensor, bias2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u = gelu(h + bias), and the gradients of both biases; du (rows, hidden), u's gradient, becomes that of h.

    g (rows, width) is the gradient of the MLP's result. All are contiguous.
    """
    (rows, hidden), width = h.shape, g.shape[1]
    block, warps = (32, 8) if rows >= 1 << 17 else (8, 4)  # rows of a block
    across = triton.cdiv(hidden, _COLUMNS) + triton.cdiv(width, _COLUMNS)
    chunk, count = cut(rows, across, block, warps, h.device)
    u, db1, db2 = torch.empty_like(h), torch.empty_like(bias), torch.empty_like(bias2)
    parts = torch.empty((count, hidden + width), dtype=torch.float32, device=h.device)
    _gelu_gradients[(count, across)](
        du, h, bias, g, u, parts, rows, chunk, HIDDEN=hidden, WIDTH=width, ROWS=block, COLUMNS=_COLUMNS,
        num_warps=warps, **launch_options(h.device),
    )  # fmt: skip
    add_column_parts(parts, db1, db2)
    return u, db1, db2


def rounded_copies(dtype: torch.dtype, *parameters: Tensor) -> list[Tensor]:
    """Parameters as products take them, without gradient."""
    return [x.detach().to(dtype) for x in parameters]


def product_stored_as(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """x y, stored in this precision without being rounded to that of x first, where the device can."""
    if x.dtype != dtype == torch.float32 and x.is_cuda:
        return torch.mm(x, y, out_dtype=dtype)
    return torch.mm(x, y).to(dtype)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


@mlp.linear.kernel
def _(x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False) -> Tensor:
    dtype = mlp.product_dtype(x)
    weight_copy, bias_copy = rounded_copies(dtype, weight, bias)
    return _linear(x.to(dtype), weight, bias, weight_copy, bias_copy, relu)


@mlp.mlp.kernel
def _(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
    dtype = mlp.product_dtype(x)
    copy1, copy2, bias_copy = rounded_copies(dtype, weight1, weight2, bias2)
    return _mlp(x.to(dtype), weight1, bias1, weight2, bias2, copy1, copy2, bias_copy)[0]


# Each is given its parameters twice, as they are kept and in x's precision: the copies, too, are saved for the backward
# pass, and only inputs may be.


@custom_op("linear", like=lambda x, weight, *rest: x.new_empty(*x.shape[:-1], weight.shape[0]))
def _linear(x: Tensor, weight: Tensor, bias: Tensor, weight_copy: Tensor, bias_copy: Tensor, relu: bool) -> Tensor:
    multiply = torch._addmm_activation if relu else torch.addmm  # whose activation is ReLU unless told otherwise
    return multiply(bias_copy, _rows(x), weight_copy.t()).view(*x.shape[:-1], -1)


@custom_op("linear_backward", like=gradients_of_first(3))
def _linear_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, bias: Tensor, weight_copy: Tensor, y: Tensor | None
) -> list[Tensor]:
    """y is the result where it went through a ReLU."""
    g = _rows(gradient)
    if y is None:
        db = column_sums(g, bias.dtype)
    else:
        g, db = relu_gradients(g, _rows(y), bias.dtype)
    return [torch.mm(g, weight_copy).view(x.shape), product_stored_as(g.t(), _rows(x), weight.dtype), db]


def _linear_gradients(gradient: Tensor, *kept: Any) -> list[Tensor]:
    x, weight, bias, weight_copy, _, _, y = kept
    return _linear_backward(gradient, x, weight, bias, weight_copy, y)


def _result_of_relu(inputs: Any, outputs: Any) -> Any:
    return *inputs, outputs[0] if inputs[-1] else None


def _linear_formula(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    return mlp.linear.formula(x, weight.to(x.dtype), bias.to(x.dtype), rest[-1])


differentiable(_linear, _linear_gradients, mlp.linear, remember=_result_of_relu, formula=_linear_formula)


def _mlp_like(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    rows = x.numel() // x.shape[-1]
    return x.new_empty(*x.shape[:-1], weight2.shape[0]), x.new_empty(rows, weight1.shape[0])


@custom_op("mlp", like=_mlp_like)
def _mlp(
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    weight1_copy: Tensor,
    weight2_copy: Tensor,
    bias2_copy: Tensor,
) -> tuple[Tensor, Tensor]:
    """The result, and the hidden units (rows, hidden) before bias and GELU."""
    h = torch.mm(_rows(x), weight1_copy.t())
    u = gelu(h, bias1)
    return torch.addmm(bias2_copy, u, weight2_copy.t()).view(*x.shape[:-1], -1), h


@custom_op("mlp_backward", like=gradients_of_first(5))
def _mlp_backward(
    gradient: Tensor,
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    weight1_copy: Tensor,
    weight2_copy: Tensor,
    bias2_copy: Tensor,
    h: Tensor,
) -> list[Tensor]:
    g = _rows(gradient)
    du = torch.mm(g, weight2_copy)
    u, db1, db2 = gelu_gradients_(du, h, bias1, g, bias2)
    dh = du
    dw2 = product_stored_as(g.t(), u, weight2.dtype)
    dw1 = product_stored_as(dh.t(), _rows(x), weight1.dtype)
    return [torch.mm(dh, weight1_copy).view(x.shape), dw1, db1, dw2, db2]


def _mlp_formula(x: Tensor, *rest: Tensor) -> Tensor:
    return mlp.mlp.formula(x, *(p.to(x.dtype) for p in rest[:4]))


differentiable(_mlp, _mlp_backward, mlp.mlp, formula=_mlp_formula)
