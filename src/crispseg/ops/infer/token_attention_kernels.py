"""Triton kernels of `token_attention.py`.

A program takes as many images' tokens as make up the rows of a product, and some of the columns; what comes before
these columns, a product of few channels and a LayerNorm, every program computes for itself. Weights, which depend on
no kernel, are loaded before the kernel before is done (see `common/dependent_launch.py`).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.hardware import padded
from crispseg.ops.common.norm import Norm
from crispseg.ops.common.tokens_and_pixels import LOG2_E, inside, normalised
from crispseg.ops.infer import token_attention
from crispseg.ops.infer.token_attention import Join, OwnAttention, Perceptron, Vectors

_HIDDEN = 128  # units of the perceptron that a program takes
_WARPS, _STAGES = 4, 3
_COLUMNS = 32  # of the hyper-network's first product that a program takes
_ROWS = 16  # tokens, which are the rows of a product: no fewer would be faster


@triton.jit
def _rows_of(x, rows, real, columns, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Rows of a matrix of WIDTH columns."""
    here = real[:, None] & inside(columns, WIDTH, WIDTH == PADDED)[None, :]
    return tl.load(x + rows[:, None] * WIDTH + columns[None, :], mask=here, other=0.0)


@triton.jit
def _store_rows(x, values, rows, real, columns, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    here = real[:, None] & inside(columns, WIDTH, WIDTH == PADDED)[None, :]
    tl.store(x + rows[:, None] * WIDTH + columns[None, :], values, mask=here)


@triton.jit
def _line(x, columns, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    return tl.load(x + columns, mask=inside(columns, WIDTH, WIDTH == PADDED), other=0.0).to(tl.float32)[None, :]


@triton.jit
def _joined(
    tokens, read, join_weight, join_bias, gain, shift, eps, rows, real,
    INNER: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, CHUNK: tl.constexpr = 64,
):  # fmt: skip
    """LayerNorm(tokens + read weight + bias) of some rows, in float32."""
    columns = tl.arange(0, PADDED)
    total = _rows_of(tokens, rows, real, columns, WIDTH, PADDED).to(tl.float32)
    total += _line(join_bias, columns, WIDTH, PADDED)
    for start in range(0, INNER, CHUNK):
        k = start + tl.arange(0, CHUNK)
        within = inside(k, INNER, INNER % CHUNK == 0)
        a = tl.load(read + rows[:, None] * INNER + k[None, :], mask=real[:, None] & within[None, :], other=0.0)
        b = _rows_of(join_weight, k, within, columns, WIDTH, PADDED)
        total = tl.dot(a, b, total, input_precision="ieee")
    return normalised(total, columns, gain, shift, eps, WIDTH, PADDED)


@triton.jit
def _rows(count, per_program, ROWS: tl.constexpr):
    row = tl.arange(0, ROWS)
    rows = tl.program_id(1) * per_program + row
    return rows, (row < per_program) & (rows < count)


@triton.jit
def _perceptron_kernel(
    tokens, read, join_weight, join_bias, gain, shift, eps, first, first_bias, second, second_bias,
    out, count, per_program,
    INNER: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    HIDDEN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """HIDDEN units' share of the perceptron's output; the first program adds what it is added to."""
    rows, real = _rows(count, per_program, ROWS)
    columns = tl.arange(0, PADDED)
    unit = tl.program_id(0) * HIDDEN + tl.arange(0, HIDDEN)
    exists = inside(unit, UNITS, UNITS % HIDDEN == 0)
    w1 = _rows_of(first, unit, exists, columns, WIDTH, PADDED)
    w2 = _rows_of(second, unit, exists, columns, WIDTH, PADDED)
    b1 = tl.load(first_bias + unit, mask=exists, other=0.0).to(tl.float32)
    after_the_kernel_before(DEPENDENT)
    t = _joined(tokens, read, join_weight, join_bias, gain, shift, eps, rows, real, INNER, WIDTH, PADDED)
    hidden = tl.maximum(tl.dot(t.to(w1.dtype), tl.trans(w1), input_precision="ieee") + b1[None, :], 0.0)
    leading = tl.where(tl.program_id(0) == 0, 1.0, 0.0)
    total = (t + _line(second_bias, columns, WIDTH, PADDED)) * leading
    total = tl.dot(hidden.to(w2.dtype), w2, total, input_precision="ieee")
    _store_rows(out, total, tl.program_id(0) * count + rows, real, columns, WIDTH, PADDED)


@triton.jit
def _group(
    t, w1, w2, bias, score, out, scores, group, rows, real,
    GROUPS: tl.constexpr, INNER: tl.constexpr, INNER_PADDED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """A group's vectors of some tokens, and what they add to scores where that is wanted."""
    columns, inner = tl.arange(0, PADDED), tl.arange(0, INNER_PADDED)
    y = tl.dot(t.to(w1.dtype), tl.trans(w1), input_precision="ieee")
    y += _line(bias + group * INNER, inner, INNER, INNER_PADDED)
    vectors = tl.dot(y.to(w2.dtype), w2, input_precision="ieee")
    _store_rows(out, vectors, rows * GROUPS + group, real, columns, WIDTH, PADDED)
    if scores is not None:
        more = tl.sum(y * _line(score + group * INNER, inner, INNER, INNER_PADDED), 1)
        tl.store(scores + rows * GROUPS + group, more, mask=real)


@triton.jit
def _own_weights(
    weight, head, wanted, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr
):  # fmt: skip
    """A head's rows of the projections to queries, keys and values; zeros where none are wanted."""
    inner, columns = tl.arange(0, HEAD_PADDED), tl.arange(0, PADDED)
    exists, channel = inner < tl.where(wanted, HEAD, 0), head * HEAD + inner
    return (
        _rows_of(weight, channel, exists, columns, WIDTH, PADDED),
        _rows_of(weight + WIDTH * WIDTH, channel, exists, columns, WIDTH, PADDED),
        _rows_of(weight + 2 * WIDTH * WIDTH, channel, exists, columns, WIDTH, PADDED),
    )


@triton.jit
def _own_head(
    t, wq, wk, wv, bias, out, head, rows, real, tokens,
    HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One head of tokens that attend each other, image by image."""
    inner = tl.arange(0, HEAD_PADDED)
    bias += head * HEAD
    x = t.to(wq.dtype)
    q = tl.dot(x, tl.trans(wq), input_precision="ieee") + _line(bias, inner, HEAD, HEAD_PADDED)
    k = tl.dot(x, tl.trans(wk), input_precision="ieee") + _line(bias + WIDTH, inner, HEAD, HEAD_PADDED)
    v = tl.dot(x, tl.trans(wv), input_precision="ieee") + _line(bias + 2 * WIDTH, inner, HEAD, HEAD_PADDED)
    scores = tl.dot(q.to(x.dtype), tl.trans(k.to(x.dtype)), input_precision="ieee") * (LOG2_E / HEAD**0.5)
    together = (rows[:, None] // tokens == rows[None, :] // tokens) & (real[:, None] == real[None, :])
    scores = tl.where(together, scores, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    y = tl.dot(weights.to(x.dtype), v.to(x.dtype), input_precision="ieee") / tl.sum(weights, 1)[:, None]
    here = real[:, None] & inside(inner, HEAD, HEAD == HEAD_PADDED)[None, :]
    tl.store(out + rows[:, None] * WIDTH + (head * HEAD + inner)[None, :], y, mask=here)


@triton.jit
def _own_kernel(
    tokens, weight, bias, out, count, per_program, per_image,
    HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    rows, real = _rows(count, per_program, ROWS)
    head = tl.program_id(0)
    wq, wk, wv = _own_weights(weight, head, True, HEAD, HEAD_PADDED, WIDTH, PADDED)
    after_the_kernel_before(DEPENDENT)
    t = _rows_of(tokens, rows, real, tl.arange(0, PADDED), WIDTH, PADDED)
    _own_head(t, wq, wk, wv, bias, out, head, rows, real, per_image, HEAD, HEAD_PADDED, WIDTH)


@triton.jit
def _settle_kernel(
    parts, gain, shift, eps, first, bias, second, score, own_weight, own_bias,
    out, vectors, scores, attended, count, per_program, tokens,
    PARTS: tl.constexpr, GROUPS: tl.constexpr, INNER: tl.constexpr, INNER_PADDED: tl.constexpr,
    HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A program makes one group's vectors, or is one head of the tokens' own attention."""
    rows, real = _rows(count, per_program, ROWS)
    columns, job = tl.arange(0, PADDED), tl.program_id(0)
    inner = tl.arange(0, INNER_PADDED)
    exists = inner < tl.where(job < GROUPS, INNER, 0)
    w1 = _rows_of(first + job * INNER * WIDTH, inner, exists, columns, WIDTH, PADDED)
    w2 = _rows_of(second + job * INNER * WIDTH, inner, exists, columns, WIDTH, PADDED)
    if HEAD > 0:
        wq, wk, wv = _own_weights(own_weight, job - GROUPS, job >= GROUPS, HEAD, HEAD_PADDED, WIDTH, PADDED)
    after_the_kernel_before(DEPENDENT)
    t = tl.zeros([ROWS, PADDED], tl.float32)
    for start in range(0, PARTS, 8):
        for i in tl.static_range(8):  # at once, to wait for memory together
            some = real & (start + i < PARTS)
            t += _rows_of(parts, (start + i) * count + rows, some, columns, WIDTH, PADDED).to(tl.float32)
    t = normalised(t, columns, gain, shift, eps, WIDTH, PADDED)
    if job == 0:
        _store_rows(out, t, rows, real, columns, WIDTH, PADDED)
    if job < GROUPS:
        _group(
            t, w1, w2, bias, score, vectors, scores, job, rows, real, GROUPS, INNER, INNER_PADDED, WIDTH, PADDED
        )  # fmt: skip
    if HEAD > 0:  # noqa: SIM102 - fixed at compile time, unlike the condition within
        if job >= GROUPS:
            _own_head(
                t, wq, wk, wv, own_bias, attended, job - GROUPS, rows, real, tokens, HEAD, HEAD_PADDED, WIDTH
            )  # fmt: skip


@triton.jit
def _vectors_kernel(
    tokens, read, join_weight, join_bias, gain, shift, eps, first, bias, second, out, vectors, count, per_program,
    JOINED: tl.constexpr, GROUPS: tl.constexpr, INNER: tl.constexpr, INNER_PADDED: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    rows, real = _rows(count, per_program, ROWS)
    columns, inner, group = tl.arange(0, PADDED), tl.arange(0, INNER_PADDED), tl.program_id(0)
    exists = inside(inner, INNER, INNER == INNER_PADDED)
    w1 = _rows_of(first + group * INNER * WIDTH, inner, exists, columns, WIDTH, PADDED)
    w2 = _rows_of(second + group * INNER * WIDTH, inner, exists, columns, WIDTH, PADDED)
    after_the_kernel_before(DEPENDENT)
    t = _joined(tokens, read, join_weight, join_bias, gain, shift, eps, rows, real, JOINED, WIDTH, PADDED)
    if group == 0:
        _store_rows(out, t, rows, real, columns, WIDTH, PADDED)
    _group(
        t, w1, w2, bias, None, vectors, None, group, rows, real, GROUPS, INNER, INNER_PADDED, WIDTH, PADDED
    )  # fmt: skip


@triton.jit
def _join_grouped_kernel(
    tokens, read, join_weight, join_bias, gain, shift, eps, weight, bias, out, rows, row_step,
    JOINED: tl.constexpr, OUTER: tl.constexpr, COLUMNS: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Some columns of the first product of a group's hyper-network."""
    group = tl.program_id(1)
    index = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column, inner = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, PADDED)
    exists = inside(column, OUTER, OUTER % COLUMNS == 0)
    here = inside(inner, WIDTH, WIDTH == PADDED)[:, None] & exists[None, :]
    w = tl.load(weight + (group * WIDTH + inner[:, None]) * OUTER + column[None, :], mask=here, other=0.0)
    after_the_kernel_before(DEPENDENT)
    real, place = index < rows, index * row_step + group
    t = _joined(tokens, read, join_weight, join_bias, gain, shift, eps, place, real, JOINED, WIDTH, PADDED)
    total = tl.dot(t.to(w.dtype), w, input_precision="ieee")
    total += tl.load(bias + group * OUTER + column, mask=exists, other=0.0).to(tl.float32)[None, :]
    if RELU:
        total = tl.maximum(total, 0.0)
    tl.store(out + place[:, None] * OUTER + column[None, :], total, mask=real[:, None] & exists[None, :])


def _image_geometry(batch: int, tokens: int) -> tuple[int, int, int]:
    """Rows that a program holds, those it uses (of whole images), and how many programs that makes."""
    images = max(1, min(batch, _ROWS // tokens))
    return max(_ROWS, triton.next_power_of_2(images * tokens)), images * tokens, triton.cdiv(batch, images)


def _options(tokens: Tensor, rows: int = _ROWS) -> dict[str, Any]:
    """What kernels are compiled for by the tokens (B, T, D), and how they are launched."""
    width = tokens.shape[-1]
    sizes = {"ROWS": rows, "WIDTH": width, "PADDED": padded(width)}
    return {**sizes, "num_warps": _WARPS, "num_stages": _STAGES, **launch_options(tokens.device)}


def _join_arguments(tokens: Tensor, read: Tensor, join: Join) -> tuple[object, ...]:
    return tokens.contiguous(), read.contiguous(), join.weight, join.bias, *join.norm


@token_attention.join_perceptron.kernel
def join_perceptron(tokens: Tensor, read: Tensor, join: Join, perceptron: Perceptron) -> Tensor:
    batch, count, width = tokens.shape
    units = perceptron.first.shape[0]
    parts = triton.cdiv(units, _HIDDEN)
    out = torch.empty(parts, batch, count, width, dtype=torch.float32, device=tokens.device)
    _perceptron_kernel[(parts, triton.cdiv(batch * count, _ROWS))](
        *_join_arguments(tokens, read, join), *perceptron, out, batch * count, _ROWS,
        INNER=read.shape[-1], UNITS=units, HIDDEN=_HIDDEN, **_options(tokens),
    )  # fmt: skip
    return out


@token_attention.settle.kernel
def settle(parts: Tensor, norm: Norm, vectors: Vectors, own: OwnAttention | None) -> tuple[Tensor, ...]:
    pieces, batch, count, width = parts.shape
    groups, inner = vectors.bias.shape
    rows, used, programs = _image_geometry(batch, count)
    out = vectors.first.new_empty(batch, count, width)
    made, scores = out.new_empty(batch, count, groups, width), out.new_empty(batch, count, groups)
    attended = torch.empty_like(out) if own else out.new_empty(0)
    weight, bias, heads = own or (out, out, 0)
    head = width // heads if heads else 0
    _settle_kernel[(groups + heads, programs)](
        parts, *norm, *vectors, weight, bias, out, made, scores, attended, batch * count, used, count,
        PARTS=pieces, GROUPS=groups, INNER=inner, INNER_PADDED=padded(inner),
        HEAD=head, HEAD_PADDED=padded(head), **_options(out, rows),
    )  # fmt: skip
    return out, made, scores, attended


@token_attention.attend_own.kernel
def attend_own(tokens: Tensor, own: OwnAttention) -> Tensor:
    batch, count, width = tokens.shape
    rows, used, programs = _image_geometry(batch, count)
    tokens, head = tokens.contiguous(), width // own.heads
    out = torch.empty_like(tokens)
    _own_kernel[(own.heads, programs)](
        tokens, own.weight, own.bias, out, batch * count, used, count,
        HEAD=head, HEAD_PADDED=padded(head), **_options(tokens, rows),
    )  # fmt: skip
    return out


@token_attention.join_vectors.kernel
def join_vectors(tokens: Tensor, read: Tensor, join: Join, vectors: Vectors) -> tuple[Tensor, Tensor]:
    batch, count, width = tokens.shape
    groups, inner = vectors.bias.shape
    out = tokens.new_empty(batch, count, width)
    made = out.new_empty(batch, count, groups, width)
    _vectors_kernel[(groups, triton.cdiv(batch * count, _ROWS))](
        *_join_arguments(tokens, read, join), *vectors[:3], out, made, batch * count, _ROWS,
        JOINED=read.shape[-1], GROUPS=groups, INNER=inner, INNER_PADDED=padded(inner), **_options(tokens),
    )  # fmt: skip
    return out, made


@token_attention.join_grouped.kernel
def join_grouped(tokens: Tensor, read: Tensor, join: Join, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    batch, classes, _ = tokens.shape
    groups, _, outer = weight.shape
    out = tokens.new_empty(batch, classes, outer)
    rows = batch * classes if groups == 1 else batch
    _join_grouped_kernel[(triton.cdiv(outer, _COLUMNS), groups, triton.cdiv(rows, _ROWS))](
        *_join_arguments(tokens, read, join), weight.contiguous(), bias, out, rows, 1 if groups == 1 else classes,
        JOINED=read.shape[-1], OUTER=outer, COLUMNS=_COLUMNS, RELU=relu, **_options(tokens),
    )  # fmt: skip
    return out
