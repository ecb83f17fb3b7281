"""Triton kernels of `pixel_attention.py`: each reads the map once. Softmaxes are taken in float32, in powers of two."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.hardware import padded
from crispseg.ops.common.norm import Norm
from crispseg.ops.common.tokens_and_pixels import LOG2_E, AttentionTiles, grouped, inside, normalised
from crispseg.ops.infer import pixel_attention

READ = AttentionTiles(64, 4, 3, 1)  # tokens attend pixels
WRITE = AttentionTiles(64, 4, 2)  # pixels attend tokens
WRITE_MORE = AttentionTiles(64, 8, 1)  # so many tokens that not all heads are attended at once


@triton.jit
def _read_kernel(
    queries, pixels, means, tops, count, heads, length, span, image_stride, token_stride, head_stride,
    ROWS: tl.constexpr, PIXELS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Some queries over one span of the pixels: their mean there, and the logarithm of the sum of its weights."""
    split, block, image = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    rows, columns = block * ROWS + tl.arange(0, ROWS), tl.arange(0, PADDED)
    filled = (rows < count)[:, None] & inside(columns, WIDTH, WIDTH == PADDED)[None, :]
    places = (rows // heads * token_stride + rows % heads * head_stride)[:, None] + columns[None, :]
    q = tl.load(queries + image * image_stride + places, mask=filled, other=0.0)

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mean = tl.zeros([ROWS, PADDED], tl.float32)
    first = split * span
    pixels += (image * length + first) * WIDTH
    last = tl.minimum(length - first, span)
    for start in range(0, last, PIXELS):
        where = start + tl.arange(0, PIXELS)
        here = inside(where, last, EVEN)[:, None] & inside(columns, WIDTH, WIDTH == PADDED)[None, :]
        x = tl.load(pixels + where[:, None] * WIDTH + columns[None, :], mask=here, other=0.0)
        scores = tl.dot(q, tl.trans(x), input_precision="ieee") * LOG2_E
        if not EVEN:
            scores = tl.where(where[None, :] < last, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weights, 1)
        mean = tl.dot(weights.to(x.dtype), x, mean * fade[:, None], input_precision="ieee")
        top = higher

    place = (image * tl.num_programs(0) + split) * count + rows
    tl.store(tops + place, top + tl.log2(total), mask=rows < count)
    tl.store(means + place[:, None] * WIDTH + columns[None, :], mean / total[:, None], mask=filled)


@triton.jit
def _combine_and_project_kernel(
    means, tops, projection, out, count, heads, splits,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, INNER: tl.constexpr, OUTPUTS: tl.constexpr,
    SPLITS: tl.constexpr, CHUNK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One query of one image: its mean over all spans, times its head's projection."""
    row, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    columns, outputs = tl.arange(0, PADDED), tl.arange(0, OUTPUTS)
    used = inside(columns, WIDTH, WIDTH == PADDED)
    within = (outputs < INNER)[:, None] & used[None, :]
    places = (row % heads * INNER + outputs)[:, None] * WIDTH + columns[None, :]
    v = tl.load(projection + places, mask=within, other=0.0).to(tl.float32)

    after_the_kernel_before(DEPENDENT)
    parts = tl.arange(0, SPLITS)
    first = image * splits * count + row
    top = tl.load(tops + first + parts * count, mask=parts < splits, other=float("-inf"))
    highest = tl.max(top, 0)
    total = tl.sum(tl.exp2(top - highest), 0)
    mean = tl.zeros([PADDED], tl.float32)
    for start in range(0, SPLITS, CHUNK):
        part = start + tl.arange(0, CHUNK)
        weights = tl.exp2(tl.load(tops + first + part * count, mask=part < splits, other=float("-inf")) - highest)
        here = (part < splits)[:, None] & used[None, :]
        some = tl.load(means + (first + part * count)[:, None] * WIDTH + columns[None, :], mask=here, other=0.0)
        mean += tl.sum(some.to(tl.float32) * weights[:, None], 0)
    projected = tl.sum(v * (mean / total)[None, :], 1)
    tl.store(out + (image * count + row) * INNER + outputs, projected, mask=outputs < INNER)


@pixel_attention.read_pixels.kernel
def read_pixels(queries: Tensor, pixels: Tensor, projection: Tensor) -> Tensor:
    batch, tokens, heads, width = queries.shape
    queries = queries if queries.stride(3) == 1 else queries.contiguous()
    pixels, projection = pixels.contiguous(), projection.contiguous()
    length, count, inner = pixels.shape[1], tokens * heads, projection.shape[1]
    rows = min(64, padded(count))
    blocks = triton.cdiv(count, rows)
    span, splits, fixed = READ.cut(pixels, blocks)
    means = pixels.new_empty(batch, splits, count, width)
    tops = torch.empty(batch, splits, count, dtype=torch.float32, device=pixels.device)
    out = pixels.new_empty(batch, tokens, heads * inner)
    _read_kernel[(splits, blocks, batch)](
        queries, pixels, means, tops, count, heads, length, span,
        queries.stride(0), queries.stride(1), queries.stride(2),
        ROWS=rows, WIDTH=width, PADDED=padded(width), **fixed,
    )  # fmt: skip
    most = triton.next_power_of_2(splits)
    _combine_and_project_kernel[(count, batch)](
        means, tops, projection, out, count, heads, splits,
        WIDTH=width, PADDED=padded(width), INNER=inner, OUTPUTS=triton.next_power_of_2(inner),
        SPLITS=most, CHUNK=min(most, 128), num_warps=8 if most >= 128 else 4, **launch_options(pixels.device),
    )  # fmt: skip
    return out


@triton.jit
def _some_heads(
    keys, added, values, bias, first, image, tokens, heads,
    key_image, key_token, key_head, added_image, added_token, value_image, value_token, value_head,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, TOKENS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Keys, values and what is added to scores of GROUP heads. Heads lie side by side within a token, so that in the
    layout that products have a thread holds all tokens' scores of a head. The bias rides on the values of the first
    head, whose weights sum to one; a token that is not there has a score of minus infinity."""
    row, columns = tl.arange(0, TOKENS * GROUP), tl.arange(0, PADDED)
    token, head = row // GROUP, first + row % GROUP
    real = (token < tokens) & (head < heads)
    used = inside(columns, WIDTH, WIDTH == PADDED)
    filled = real[:, None] & used[None, :]
    place = (token * key_token + head * key_head)[:, None] + columns[None, :]
    k = tl.load(keys + image * key_image + place, mask=filled, other=0.0)
    place = (token * value_token + head * value_head)[:, None] + columns[None, :]
    v = tl.load(values + image * value_image + place, mask=filled, other=0.0)
    v = tl.where((head == 0)[:, None], v + tl.load(bias + columns, mask=used, other=0.0)[None, :], v)
    more = tl.load(added + image * added_image + token * added_token + head, mask=real, other=0.0).to(tl.float32)
    return k, v, tl.where(token < tokens, more * LOG2_E, float("-inf"))


@triton.jit
def _attended(x, k, v, more, result, PIXELS: tl.constexpr, TOKENS: tl.constexpr, GROUP: tl.constexpr):
    """result + what pixels x get from some heads."""
    scores = tl.dot(x, tl.trans(k), input_precision="ieee") * LOG2_E + more[None, :]
    scores = tl.reshape(scores, (PIXELS, TOKENS, GROUP))
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None, :])
    weights = weights * (1.0 / tl.sum(weights, 1))[:, None, :]
    weights = tl.reshape(weights, (PIXELS, TOKENS * GROUP)).to(v.dtype)
    return tl.dot(weights, v, result, input_precision="ieee")


@triton.jit
def _write_kernel(
    pixels, keys, added, values, bias, weight, shift, out, length, tokens, heads, span, eps,
    key_image, key_token, key_head, added_image, added_token, value_image, value_token, value_head,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PIXELS: tl.constexpr, TOKENS: tl.constexpr, GROUP: tl.constexpr,
    GROUPS: tl.constexpr, EVEN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A span of pixels attends the tokens, GROUP heads at a time; residual and LayerNorm at the end."""
    after_the_kernel_before(DEPENDENT)
    image, columns = tl.program_id(1).to(tl.int64), tl.arange(0, PADDED)
    k, v, more = _some_heads(
        keys, added, values, bias, 0, image, tokens, heads,
        key_image, key_token, key_head, added_image, added_token, value_image, value_token, value_head,
        WIDTH, PADDED, TOKENS, GROUP,
    )  # fmt: skip
    first = tl.program_id(0) * span
    pixels += (image * length + first) * WIDTH
    out += (image * length + first) * WIDTH
    last = tl.minimum(length - first, span)
    for start in range(0, last, PIXELS):
        where = start + tl.arange(0, PIXELS)
        here = inside(where, last, EVEN)[:, None] & inside(columns, WIDTH, WIDTH == PADDED)[None, :]
        places = where[:, None] * WIDTH + columns[None, :]
        x = tl.load(pixels + places, mask=here, other=0.0)
        result = x.to(tl.float32)
        if GROUPS == 1:
            result = _attended(x, k, v, more, result, PIXELS, TOKENS, GROUP)
        else:
            for group in range(GROUPS):
                k, v, more = _some_heads(
                    keys, added, values, bias, group * GROUP, image, tokens, heads,
                    key_image, key_token, key_head, added_image, added_token, value_image, value_token, value_head,
                    WIDTH, PADDED, TOKENS, GROUP,
                )  # fmt: skip
                result = _attended(x, k, v, more, result, PIXELS, TOKENS, GROUP)
        tl.store(out + places, normalised(result, columns, weight, shift, eps, WIDTH, PADDED), mask=here)


@pixel_attention.pixels_attend_tokens.kernel
def pixels_attend_tokens(
    pixels: Tensor, keys: Tensor, added: Tensor, values: Tensor, bias: Tensor, norm: Norm
) -> Tensor:
    batch, length, width = pixels.shape
    tokens, heads = keys.shape[1:3]
    pixels = pixels.contiguous()
    keys, values, added = (x if x.stride(-1) == 1 else x.contiguous() for x in (keys, values, added))
    out = torch.empty_like(pixels)
    held = max(2, triton.next_power_of_2(tokens))
    group = grouped(held, heads)
    groups = triton.cdiv(heads, group)
    span, splits, fixed = (WRITE if groups == 1 else WRITE_MORE).cut(pixels)
    _write_kernel[(splits, batch)](
        pixels, keys, added, values, bias, norm.weight, norm.bias, out, length, tokens, heads, span, norm.eps,
        keys.stride(0), keys.stride(1), keys.stride(2), added.stride(0), added.stride(1),
        values.stride(0), values.stride(1), values.stride(2),
        WIDTH=width, PADDED=padded(width), TOKENS=held, GROUP=group, GROUPS=groups,
        **fixed, **launch_options(pixels.device),
    )  # fmt: skip
    return out
