"""Triton kernels of `attend.py`: each reads the pixel map once. Softmaxes are taken in float32, in powers of two."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)
_PROGRAMS = 132  # at most, where the pixels are split among them: one for each multiprocessor of an H200


class Tiles(NamedTuple):
    """Pixels that a program holds at a time, its warps, and the stages of its loads; in half precision."""

    pixels: int
    warps: int
    stages: int


READ = Tiles(64, 8, 3)  # tokens attend pixels
WRITE = Tiles(64, 8, 1)  # pixels attend tokens
_FLOAT32 = Tiles(16, 4, 1)  # for the interpreter; attend.py takes torch's products in float32


@triton.jit
def _normalised(x, columns, width, weight, bias, eps):
    """LayerNorm of the rows of x, whose columns beyond `width` are zero."""
    mean = tl.sum(x, 1) / width
    centred = tl.where(columns[None, :] < width, x - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / width + eps)
    inside = columns < width
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    return centred * scale[:, None] * gain[None, :] + shift[None, :]


@triton.jit
def _add_norm_kernel(x, y, out, weight, bias, count, width, eps, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (rows[:, None] < count) & (columns[None, :] < width)
    places = rows[:, None].to(tl.int64) * width + columns[None, :]
    total = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(y + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + places, _normalised(total, columns, width, weight, bias, eps), mask=inside)


def add_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    width = x.shape[-1]
    count = x.numel() // width
    columns = triton.next_power_of_2(width)
    rows = max(1, 2048 // columns) if count > 1024 else 1
    _add_norm_kernel[(triton.cdiv(count, rows),)](
        x, y, out, weight, bias, count, width, eps, ROWS=rows, COLUMNS=columns, num_warps=4
    )
    return out


@triton.jit
def _attend_few_kernel(
    qkv, out, tokens, width, image_stride, token_stride, scale,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One head of one image."""
    image, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    rows, columns = tl.arange(0, TOKENS), tl.arange(0, WIDTH)
    inside = (rows[:, None] < tokens) & (columns[None, :] < width)
    places = qkv + image * image_stride + rows[:, None] * token_stride + head * width + columns[None, :]
    size = heads * width
    q = tl.load(places, mask=inside, other=0.0)
    k = tl.load(places + size, mask=inside, other=0.0)
    v = tl.load(places + 2 * size, mask=inside, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)
    scores = tl.where(rows[None, :] < tokens, scores, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    total = tl.sum(weights, 1)
    y = tl.dot(weights.to(v.dtype), v, input_precision="ieee") / total[:, None]
    tl.store(out + (image * tokens + rows[:, None]) * size + head * width + columns[None, :], y, mask=inside)


def attend_few(qkv: Tensor, heads: int) -> Tensor:
    batch, tokens, three = qkv.shape
    qkv = qkv if qkv.stride(2) == 1 else qkv.contiguous()
    width = three // 3 // heads
    out = qkv.new_empty(batch, tokens, three // 3)
    _attend_few_kernel[(batch, heads)](
        qkv, out, tokens, width, qkv.stride(0), qkv.stride(1), width**-0.5,
        TOKENS=max(16, triton.next_power_of_2(tokens)), WIDTH=max(16, triton.next_power_of_2(width)), num_warps=1,
    )  # fmt: skip
    return out


@triton.jit
def _read_kernel(
    queries, pixels, means, tops, totals, count, heads, length, width, span, splits,
    image_stride, token_stride, head_stride,
    ROWS: tl.constexpr, PIXELS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Some queries over one span of the pixels: their mean there, the largest score and the sum of weights."""
    split, block, image = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    rows, columns = block * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (rows[:, None] < count) & (columns[None, :] < width)
    places = (rows // heads * token_stride + rows % heads * head_stride)[:, None] + columns[None, :]
    q = tl.load(queries + image * image_stride + places, mask=inside, other=0.0)

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mean = tl.zeros([ROWS, WIDTH], tl.float32)
    last = tl.minimum(length, (split + 1) * span)
    for start in range(split * span, last, PIXELS):
        where = start + tl.arange(0, PIXELS)
        here = (where[:, None] < last) & (columns[None, :] < width)
        x = tl.load(pixels + (image * length + where[:, None]) * width + columns[None, :], mask=here, other=0.0)
        scores = tl.dot(q, tl.trans(x), input_precision="ieee") * LOG2_E
        scores = tl.where(where[None, :] < last, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weights, 1)
        mean = mean * fade[:, None] + tl.dot(weights.to(x.dtype), x, input_precision="ieee")
        top = higher

    place = (image * splits + split) * count + rows
    tl.store(tops + place, top, mask=rows < count)
    tl.store(totals + place, total, mask=rows < count)
    tl.store(means + place[:, None] * width + columns[None, :], mean, mask=inside)


@triton.jit
def _combine_kernel(
    means, tops, totals, out, count, width, splits, SPLITS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """One query of one image: its mean over all spans, for some of the channels."""
    row, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    columns = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    parts = tl.arange(0, SPLITS)
    place = (image * splits + parts) * count + row
    top = tl.load(tops + place, mask=parts < splits, other=float("-inf"))
    weights = tl.exp2(top - tl.max(top, 0))
    total = tl.sum(weights * tl.load(totals + place, mask=parts < splits, other=0.0), 0)
    inside = (parts[:, None] < splits) & (columns[None, :] < width)
    mean = tl.load(means + place[:, None] * width + columns[None, :], mask=inside, other=0.0)
    mean = tl.sum(mean * weights[:, None], 0) / total
    tl.store(out + (image * count + row) * width + columns, mean, mask=columns < width)


def tokens_attend_pixels(queries: Tensor, pixels: Tensor) -> Tensor:
    batch, tokens, heads, width = queries.shape
    queries = queries if queries.stride(3) == 1 else queries.contiguous()
    pixels = pixels.contiguous()
    length, count = pixels.shape[1], tokens * heads
    tiles = _FLOAT32 if pixels.dtype == torch.float32 else READ
    rows = min(64, max(16, triton.next_power_of_2(count)))
    blocks = triton.cdiv(count, rows)
    splits = max(1, min(_PROGRAMS // (batch * blocks), triton.cdiv(length, tiles.pixels), 128))
    span = triton.cdiv(triton.cdiv(length, splits), tiles.pixels) * tiles.pixels
    splits = triton.cdiv(length, span)
    means = torch.empty(batch, splits, count, width, dtype=torch.float32, device=pixels.device)
    tops = torch.empty(2, batch, splits, count, dtype=torch.float32, device=pixels.device)
    out = pixels.new_empty(batch, tokens, heads, width)
    wide = max(16, triton.next_power_of_2(width))
    _read_kernel[(splits, blocks, batch)](
        queries, pixels, means, tops[0], tops[1], count, heads, length, width, span, splits,
        queries.stride(0), queries.stride(1), queries.stride(2),
        ROWS=rows, PIXELS=tiles.pixels, WIDTH=wide,
        num_warps=tiles.warps if rows * wide >= 8192 else 4, num_stages=tiles.stages,
    )  # fmt: skip
    part = min(64, wide)
    _combine_kernel[(count, batch, triton.cdiv(width, part))](
        means, tops[0], tops[1], out, count, width, splits,
        SPLITS=triton.next_power_of_2(splits), WIDTH=part, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _write_kernel(
    pixels, keys, added, values, bias, weight, shift, out, length, width, tokens, heads, eps,
    key_image, key_token, key_head, added_image, added_token, value_image, value_token, value_head,
    PIXELS: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Some pixels attend the tokens, GROUP heads at a time; residual and LayerNorm at the end."""
    where, image = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS), tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    inside = (where[:, None] < length) & (columns[None, :] < width)
    places = (image * length + where[:, None]) * width + columns[None, :]
    x = tl.load(pixels + places, mask=inside, other=0.0)
    row = tl.arange(0, GROUP * TOKENS)
    token = row % TOKENS
    result = x.to(tl.float32) + tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)[None, :]
    for first in range(0, heads, GROUP):
        head = first + row // TOKENS
        real = (token < tokens) & (head < heads)
        filled = real[:, None] & (columns[None, :] < width)
        place = (token * key_token + head * key_head)[:, None] + columns[None, :]
        k = tl.load(keys + image * key_image + place, mask=filled, other=0.0)
        more = tl.load(added + image * added_image + token * added_token + head, mask=real, other=0.0).to(tl.float32)
        scores = (tl.dot(x, tl.trans(k), input_precision="ieee") + more[None, :]) * LOG2_E
        scores = tl.where((token < tokens)[None, :], scores, float("-inf"))
        scores = tl.reshape(scores, (PIXELS, GROUP, TOKENS))
        weights = tl.exp2(scores - tl.max(scores, 2)[:, :, None])
        weights = weights / tl.sum(weights, 2)[:, :, None]
        weights = tl.reshape(weights, (PIXELS, GROUP * TOKENS))
        place = (token * value_token + head * value_head)[:, None] + columns[None, :]
        v = tl.load(values + image * value_image + place, mask=filled, other=0.0)
        result += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    result = tl.where(columns[None, :] < width, result, 0.0)
    tl.store(out + places, _normalised(result, columns, width, weight, shift, eps), mask=inside)


def pixels_attend_tokens(
    pixels: Tensor,
    keys: Tensor,
    added: Tensor,
    values: Tensor,
    bias: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
) -> Tensor:
    batch, length, width = pixels.shape
    tokens, heads = keys.shape[1:3]
    pixels = pixels.contiguous()
    keys, values, added = (x if x.stride(-1) == 1 else x.contiguous() for x in (keys, values, added))
    out = torch.empty_like(pixels)
    padded = max(2, triton.next_power_of_2(tokens))
    group = max(16 // padded, min(64 // padded, triton.next_power_of_2(heads)), 1)
    tiles = _FLOAT32 if pixels.dtype == torch.float32 else WRITE
    wide = max(16, triton.next_power_of_2(width))
    _write_kernel[(triton.cdiv(length, tiles.pixels), batch)](
        pixels, keys, added, values, bias, norm_weight, norm_bias, out, length, width, tokens, heads, eps,
        keys.stride(0), keys.stride(1), keys.stride(2), added.stride(0), added.stride(1),
        values.stride(0), values.stride(1), values.stride(2),
        PIXELS=tiles.pixels, WIDTH=wide, TOKENS=padded, GROUP=group,
        num_warps=tiles.warps if tiles.pixels * wide >= 8192 else 4, num_stages=tiles.stages,
    )  # fmt: skip
    return out
