"""Triton kernels of `cross_attention.py`: few tokens on one side, each pixel of the other read once.

A token has one row for each head of a group, with zeros where other heads' channels are. A pixel's product with such a
row is then that head's score, and all heads of the group take one product as wide as they are together: nothing is
transposed or cut into heads. The zeros cost arithmetic that tensor cores have to spare while they wait for memory.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.custom import all_there_is, custom_op, differentiable, gradients_of_first
from crispseg.ops.common.hardware import padded
from crispseg.ops.common.rounding import like, multiply
from crispseg.ops.common.tokens_and_pixels import LOG2_E, AttentionTiles, add_spans, inside, product
from crispseg.ops.train.cross_attention import MOST_TOKENS, cross_attention

_READ_TOKENS = AttentionTiles(128, 4, 2, 4)  # many queries
_READ_TOKENS_BACK = AttentionTiles(64, 4, 2, 3)  # registers for three programs on a multiprocessor
_READ_PIXELS = AttentionTiles(64, 4, 3, 4)  # few queries
_READ_PIXELS_BACK = AttentionTiles(64, 4, 2, 3)
_ROWS, _COLUMNS = 32, 64  # of the tokens of a group of heads; one head may have more rows
_PARTS = 16


@triton.jit
def _rows(first, tokens, heads, WIDTH: tl.constexpr, TOKENS: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr):
    """Of the tokens' rows: the token, the head, the channels, and which of these are their own."""
    row, column = tl.arange(0, TOKENS * GROUP), tl.arange(0, COLUMNS)
    token, head = row // GROUP, row % GROUP
    real = (token < tokens) & (first + head < heads)
    own = (column[None, :] // WIDTH == head[:, None]) & real[:, None]
    return token, first + head, first * WIDTH + column[None, :], own


@triton.jit
def _weights(scores, token, tokens, PIXELS: tl.constexpr, TOKENS: tl.constexpr, GROUP: tl.constexpr):
    """The softmax over tokens of scores (pixels, tokens x heads), as (pixels, tokens, heads)."""
    scores = tl.where((token < tokens)[None, :], scores * LOG2_E, float("-inf"))
    scores = tl.reshape(scores, (PIXELS, TOKENS, GROUP))
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None, :])
    return weights * (1.0 / tl.sum(weights, 1))[:, None, :]


@triton.jit
def _pixels_read_tokens_kernel(
    q, kv, out, length, span, tokens, heads, scale,
    WIDTH: tl.constexpr, TOKENS: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr,
    PIXELS: tl.constexpr, EVEN: tl.constexpr, FILLED: tl.constexpr,
):  # fmt: skip
    """A span of the pixels reads from the tokens."""
    first, image = tl.program_id(1) * GROUP, tl.program_id(2).to(tl.int64)
    inner = heads * WIDTH
    token, _, channels, own = _rows(first, tokens, heads, WIDTH, TOKENS, GROUP, COLUMNS)
    places = token[:, None] * (2 * inner) + channels
    kv += image * tokens * (2 * inner)
    keys = tl.load(kv + places, mask=own, other=0.0)
    values = tl.load(kv + places + inner, mask=own, other=0.0)
    column = tl.arange(0, COLUMNS)
    used = inside(column, tl.minimum(GROUP, heads - first) * WIDTH, FILLED)
    begin = tl.program_id(0) * span
    q += (image * length + begin) * inner + first * WIDTH
    out += (image * length + begin) * inner + first * WIDTH
    last = tl.minimum(length - begin, span)
    for start in range(0, last, PIXELS):
        where = start + tl.arange(0, PIXELS)
        here = inside(where, last, EVEN)[:, None] & used[None, :]
        place = where[:, None] * inner + column[None, :]
        x = tl.load(q + place, mask=here, other=0.0)
        weights = _weights(product(x, tl.trans(keys)) * scale, token, tokens, PIXELS, TOKENS, GROUP)
        read = product(like(tl.reshape(weights, (PIXELS, TOKENS * GROUP)), values), values)
        tl.store(out + place, like(read, x), mask=here)


@triton.jit
def _pixels_read_tokens_gradients(
    g, q, kv, dq, parts, length, span, tokens, heads, scale,
    WIDTH: tl.constexpr, TOKENS: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr,
    PIXELS: tl.constexpr, EVEN: tl.constexpr, FILLED: tl.constexpr,
):  # fmt: skip
    """With P the weights and G the result's gradient: dS = P (G V^T - row sums of P (G V^T)), dQ = dS K, dK = dS^T Q,
    dV = P^T G; of the last two, the sums over this span."""
    first, image = tl.program_id(1) * GROUP, tl.program_id(2).to(tl.int64)
    inner = heads * WIDTH
    token, _, channels, own = _rows(first, tokens, heads, WIDTH, TOKENS, GROUP, COLUMNS)
    places = token[:, None] * (2 * inner) + channels
    kv += image * tokens * (2 * inner)
    keys = tl.load(kv + places, mask=own, other=0.0)
    values = tl.load(kv + places + inner, mask=own, other=0.0)
    column = tl.arange(0, COLUMNS)
    used = inside(column, tl.minimum(GROUP, heads - first) * WIDTH, FILLED)
    begin = tl.program_id(0) * span
    offset = (image * length + begin) * inner + first * WIDTH
    q, g, dq = q + offset, g + offset, dq + offset
    last = tl.minimum(length - begin, span)
    d_keys = tl.zeros([TOKENS * GROUP, COLUMNS], tl.float32)
    d_values = tl.zeros([TOKENS * GROUP, COLUMNS], tl.float32)
    for start in range(0, last, PIXELS):
        where = start + tl.arange(0, PIXELS)
        here = inside(where, last, EVEN)[:, None] & used[None, :]
        place = where[:, None] * inner + column[None, :]
        x = tl.load(q + place, mask=here, other=0.0)
        dy = tl.load(g + place, mask=here, other=0.0)
        weights = _weights(product(x, tl.trans(keys)) * scale, token, tokens, PIXELS, TOKENS, GROUP)
        towards = tl.reshape(product(dy, tl.trans(values)), (PIXELS, TOKENS, GROUP))
        mean = tl.sum(weights * towards, 1)
        d_scores = like(tl.reshape(weights * (towards - mean[:, None, :]) * scale, (PIXELS, TOKENS * GROUP)), x)
        d_values = multiply(tl.trans(like(tl.reshape(weights, (PIXELS, TOKENS * GROUP)), dy)), dy, d_values)
        d_keys = multiply(tl.trans(d_scores), x, d_keys)
        tl.store(dq + place, like(product(d_scores, keys), x), mask=here)

    parts += (image * tl.num_programs(0) + tl.program_id(0)) * tokens * (2 * inner)
    tl.store(parts + places, d_keys, mask=own)
    tl.store(parts + places + inner, d_values, mask=own)


@triton.jit
def _tokens_read_pixels_kernel(
    q, kv, means, tops, length, span, tokens, heads, scale,
    WIDTH: tl.constexpr, TOKENS: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr,
    PIXELS: tl.constexpr, EVEN: tl.constexpr, FILLED: tl.constexpr,
):  # fmt: skip
    """The tokens read from a span of the pixels: the mean there, and the logarithm of the sum of its weights."""
    first, image = tl.program_id(1) * GROUP, tl.program_id(2).to(tl.int64)
    inner = heads * WIDTH
    token, head, channels, own = _rows(first, tokens, heads, WIDTH, TOKENS, GROUP, COLUMNS)
    places = token[:, None] * inner + channels
    queries = tl.load(q + image * tokens * inner + places, mask=own, other=0.0)
    column = tl.arange(0, COLUMNS)
    used = inside(column, tl.minimum(GROUP, heads - first) * WIDTH, FILLED)
    begin = tl.program_id(0) * span
    kv += (image * length + begin) * (2 * inner) + first * WIDTH
    last = tl.minimum(length - begin, span)
    top = tl.full([TOKENS * GROUP], float("-inf"), tl.float32)
    total = tl.zeros([TOKENS * GROUP], tl.float32)
    mean = tl.zeros([TOKENS * GROUP, COLUMNS], tl.float32)
    for start in range(0, last, PIXELS):
        where = start + tl.arange(0, PIXELS)
        here = inside(where, last, EVEN)[:, None] & used[None, :]
        place = where[:, None] * (2 * inner) + column[None, :]
        keys = tl.load(kv + place, mask=here, other=0.0)
        values = tl.load(kv + place + inner, mask=here, other=0.0)
        scores = product(queries, tl.trans(keys)) * (scale * LOG2_E)
        if not EVEN:
            scores = tl.where((where < last)[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weights, 1)
        mean = multiply(like(weights, values), values, mean * fade[:, None])
        top = higher

    part = (image * tl.num_programs(0) + tl.program_id(0)) * tokens
    tl.store(means + part * inner + places, mean / total[:, None], mask=own)
    real = (token < tokens) & (head < heads)
    tl.store(tops + (part + token) * heads + head, top + tl.log2(total), mask=real)


@triton.jit
def _combine_spans_kernel(
    means, tops, out, sums, splits, tokens, heads,
    WIDTH: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One token of one image over all spans: its mean, and for each head the logarithm of the sum of all weights."""
    token, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, INNER)
    head, real = column // WIDTH, column < heads * WIDTH
    top = tl.full([INNER], float("-inf"), tl.float32)
    total = tl.zeros([INNER], tl.float32)
    mean = tl.zeros([INNER], tl.float32)
    for start in range(0, splits, PARTS):
        part = start + tl.arange(0, PARTS)
        here = (part < splits)[:, None] & real[None, :]
        row = ((image * splits + part) * tokens + token)[:, None]
        some = tl.load(tops + row * heads + head[None, :], mask=here, other=float("-inf"))
        read = tl.load(means + row * (heads * WIDTH) + column[None, :], mask=here, other=0.0)
        higher = tl.where(real, tl.maximum(top, tl.max(some, 0)), 0.0)
        weights = tl.exp2(some - higher[None, :])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weights, 0)
        mean = mean * fade + tl.sum(weights * read, 0)
        top = higher
    row = image * tokens + token
    tl.store(
        out + row * (heads * WIDTH) + column, (mean / tl.where(real, total, 1.0)).to(out.dtype.element_ty), mask=real
    )
    tl.store(sums + row * heads + head, top + tl.log2(tl.where(real, total, 1.0)), mask=real & (column % WIDTH == 0))


@triton.jit
def _tokens_read_pixels_gradients(
    g, q, kv, out, sums, dkv, parts, length, span, tokens, heads, scale,
    WIDTH: tl.constexpr, TOKENS: tl.constexpr, GROUP: tl.constexpr, COLUMNS: tl.constexpr,
    PIXELS: tl.constexpr, EVEN: tl.constexpr, FILLED: tl.constexpr,
):  # fmt: skip
    """As `_pixels_read_tokens_gradients`, where the row sums are those of G times the result, and dQ is what is summed.
    Scores stand pixel by pixel here, (pixels, tokens x heads)."""
    first, image = tl.program_id(1) * GROUP, tl.program_id(2).to(tl.int64)
    inner = heads * WIDTH
    token, head, channels, own = _rows(first, tokens, heads, WIDTH, TOKENS, GROUP, COLUMNS)
    places = token[:, None] * inner + channels
    queries = tl.load(q + image * tokens * inner + places, mask=own, other=0.0)
    dy = tl.load(g + image * tokens * inner + places, mask=own, other=0.0)
    y = tl.load(out + image * tokens * inner + places, mask=own, other=0.0)
    mean = tl.sum(y.to(tl.float32) * dy.to(tl.float32), 1)
    real = (token < tokens) & (head < heads)
    logarithm = tl.load(sums + (image * tokens + token) * heads + head, mask=real, other=float("inf"))
    column = tl.arange(0, COLUMNS)
    used = inside(column, tl.minimum(GROUP, heads - first) * WIDTH, FILLED)
    begin = tl.program_id(0) * span
    offset = (image * length + begin) * (2 * inner) + first * WIDTH
    kv, dkv = kv + offset, dkv + offset
    last = tl.minimum(length - begin, span)
    d_queries = tl.zeros([TOKENS * GROUP, COLUMNS], tl.float32)
    for start in range(0, last, PIXELS):
        where = start + tl.arange(0, PIXELS)
        here = inside(where, last, EVEN)[:, None] & used[None, :]
        place = where[:, None] * (2 * inner) + column[None, :]
        keys = tl.load(kv + place, mask=here, other=0.0)
        values = tl.load(kv + place + inner, mask=here, other=0.0)
        weights = tl.exp2(product(keys, tl.trans(queries)) * (scale * LOG2_E) - logarithm[None, :])
        towards = product(values, tl.trans(dy))
        d_scores = like(weights * (towards - mean[None, :]) * scale, keys)
        tl.store(dkv + place + inner, like(product(like(weights, dy), dy), values), mask=here)
        tl.store(dkv + place, like(product(d_scores, queries), keys), mask=here)
        d_queries = multiply(tl.trans(d_scores), keys, d_queries)

    part = (image * tl.num_programs(0) + tl.program_id(0)) * tokens
    tl.store(parts + part * inner + places, d_queries, mask=own)


class AttentionLaunch(NamedTuple):
    """How heads and pixels are dealt out to programs."""

    batch: int
    tokens: int
    heads: int
    length: int
    span: int
    splits: int  # spans of an image
    width: int
    fixed: dict[str, Any]

    @classmethod
    def of(cls, pixels: Tensor, few: Tensor, inner: int, heads: int, tiles: AttentionTiles) -> AttentionLaunch:
        batch, length, _ = pixels.shape
        tokens, width = few.shape[1], inner // heads
        held = triton.next_power_of_2(tokens)
        wide = _COLUMNS // triton.next_power_of_2(width)
        group = max(1, min(_ROWS // held, wide, triton.next_power_of_2(heads)))
        held = max(held, 16 // group)  # a product has sixteen rows at least
        columns = padded(group * width)
        span, splits, fixed = tiles.cut(pixels, triton.cdiv(heads, group))
        filled = columns == group * width and heads % group == 0
        fixed |= {"WIDTH": width, "TOKENS": held, "GROUP": group, "COLUMNS": columns, "FILLED": filled}
        return cls(batch, tokens, heads, length, span, splits, width, fixed)

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.splits, triton.cdiv(self.heads, self.fixed["GROUP"]), self.batch

    @property
    def numbers(self) -> tuple[int, int, int, int, float]:
        return self.length, self.span, self.tokens, self.heads, 1 / math.sqrt(self.width)

    def parts(self, few: Tensor) -> Tensor:
        """Room for what each span adds to something of the tokens' side."""
        return torch.empty(self.batch, self.splits, *few.shape[1:], dtype=torch.float32, device=few.device)


@cross_attention.kernel
def _(q: Tensor, kv: Tensor, heads: int) -> Tensor:
    return pixels_read_tokens(q, kv, heads) if kv.shape[1] <= MOST_TOKENS else tokens_read_pixels(q, kv, heads)[0]


@custom_op("pixels_read_tokens", like=lambda q, kv, heads: q.new_empty(q.shape))
def pixels_read_tokens(q: Tensor, kv: Tensor, heads: int) -> Tensor:
    q, kv = q.contiguous(), kv.contiguous()
    launch = AttentionLaunch.of(q, kv, q.shape[2], heads, _READ_TOKENS)
    out = torch.empty_like(q)
    _pixels_read_tokens_kernel[launch.grid](q, kv, out, *launch.numbers, **launch.fixed)
    return out


@custom_op("pixels_read_tokens_backward", like=gradients_of_first(2))
def _pixels_read_tokens_back(g: Tensor, q: Tensor, kv: Tensor, heads: int) -> list[Tensor]:
    g, q, kv = g.contiguous(), q.contiguous(), kv.contiguous()
    launch = AttentionLaunch.of(q, kv, q.shape[2], heads, _READ_TOKENS_BACK)
    dq, dkv, parts = torch.empty_like(q), torch.empty_like(kv), launch.parts(kv)
    _pixels_read_tokens_gradients[launch.grid](g, q, kv, dq, parts, *launch.numbers, **launch.fixed)
    add_spans(parts, dkv)
    return [dq, dkv]


def _with_sums(q: Tensor, kv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty((*q.shape[:2], heads), dtype=torch.float32)


@custom_op("tokens_read_pixels", like=_with_sums)
def tokens_read_pixels(q: Tensor, kv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """The result, and the logarithms (to base two) of the sums of weights (B, tokens, heads)."""
    q, kv = q.contiguous(), kv.contiguous()
    launch = AttentionLaunch.of(kv, q, q.shape[2], heads, _READ_PIXELS)
    means = launch.parts(q)
    tops = torch.empty(launch.batch, launch.splits, launch.tokens, heads, dtype=torch.float32, device=q.device)
    out, sums = _with_sums(q, kv, heads)
    _tokens_read_pixels_kernel[launch.grid](q, kv, means, tops, *launch.numbers, **launch.fixed)
    _combine_spans_kernel[(launch.tokens, launch.batch)](
        means, tops, out, sums, launch.splits, launch.tokens, heads,
        WIDTH=launch.width, INNER=triton.next_power_of_2(q.shape[2]), PARTS=_PARTS, num_warps=4,
    )  # fmt: skip
    return out, sums


@custom_op("tokens_read_pixels_backward", like=gradients_of_first(2))
def _tokens_read_pixels_back(g: Tensor, q: Tensor, kv: Tensor, heads: int, out: Tensor, sums: Tensor) -> list[Tensor]:
    g, q, kv = g.contiguous(), q.contiguous(), kv.contiguous()
    launch = AttentionLaunch.of(kv, q, q.shape[2], heads, _READ_PIXELS_BACK)
    dq, dkv, parts = torch.empty_like(q), torch.empty_like(kv), launch.parts(q)
    _tokens_read_pixels_gradients[launch.grid](g, q, kv, out, sums, dkv, parts, *launch.numbers, **launch.fixed)
    add_spans(parts, dq)
    return [dq, dkv]


differentiable(pixels_read_tokens, _pixels_read_tokens_back, cross_attention)
differentiable(tokens_read_pixels, _tokens_read_pixels_back, cross_attention, remember=all_there_is)
