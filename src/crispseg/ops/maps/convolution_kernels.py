"""Triton kernels of `convolution.py`: 3x3 convolutions of few channels as matrix products, with what follows them.

In memory the three pixels that a row of the window covers lie side by side, and so do their weights: a patch is one
block of elements for each of the window's rows. With GROUP two neighbouring output pixels share a row of the product,
so that it is wide enough for the matrix units; their patch spans four pixels.

Names in capitals are fixed at compile time: C, OUT, BANDS (channels), PLACES (rows of the product), SPAN (elements of
a patch's row), K1 and K2 (SPAN in two parts that are powers of two, the second zero where the first holds all).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crispseg.ops.common.dependent_launch import after_the_kernel_before, launch_options
from crispseg.ops.common.hardware import multiprocessors, padded
from crispseg.ops.common.rounding import multiply
from crispseg.ops.common.tuples import with_one_more
from crispseg.ops.maps import convolution


class ConvolutionTiles(NamedTuple):
    """How `convolve` cuts its work: rows of a strip, pixels along a row, output pixels that share a row of the product;
    a program's warps, the stages of its loads, and programs for each processor."""

    rows: int
    pixels: int
    group: int
    warps: int = 4
    stages: int = 1
    programs: int = 4


class MixTiles(NamedTuple):
    """How `halve_and_mix` cuts its work: pixels of a program, hidden channels at a time; warps and stages."""

    pixels: int
    chunk: int
    warps: int
    stages: int


def tiles_for(pixels: int, count: int) -> ConvolutionTiles:
    """By the pixels of all maps and the channels of the result."""
    if count > 32:
        return ConvolutionTiles(2, 128, 1, 8, programs=2)
    return ConvolutionTiles(2, 128, 2, programs=2) if pixels <= 1 << 18 else ConvolutionTiles(4, 128, 2, programs=2)


def mix_tiles_for(channels: int) -> MixTiles:
    """By the channels of the map: wider patches leave less shared memory."""
    return MixTiles(128, 64, 8, 3) if channels <= 32 else MixTiles(64, 64, 4, 1)


@triton.jit
def _patch(row, first, k, end, SPAN: tl.constexpr, START: tl.constexpr, K: tl.constexpr):
    """Elements `first + k` of a row of the map that has `end` of them, zero outside."""
    place = first[:, None] + k[None, :]
    inside = (place >= 0) & (place < end)
    if START + K > SPAN:
        inside &= k[None, :] < SPAN
    return tl.load(row + place, mask=inside, other=0.0)


@triton.jit
def _patches(
    x, image, row, first, height, width, C: tl.constexpr, SPAN: tl.constexpr, K1: tl.constexpr, K2: tl.constexpr
):
    """The patches' elements in one row of a map, in one part or two."""
    end = width * C * ((row >= 0) & (row < height)).to(tl.int32)
    base = x + (image + row.to(tl.int64) * width) * C
    parts = (_patch(base, first, tl.arange(0, K1), end, SPAN, 0, K1),)
    if K2 > 0:
        parts = with_one_more(parts, _patch(base, first, K1 + tl.arange(0, K2), end, SPAN, K1, K2))
    return parts


@triton.jit
def _taps(weight, n, k, C: tl.constexpr, OUT: tl.constexpr, GROUP: tl.constexpr):
    """The window's rows, weight (OUT, 3, 3, C), as matrices (k, n): column n is channel n % OUT of pixel n // OUT."""
    rows = ()
    for i in tl.static_range(3):
        place = k[:, None] - (n // OUT)[None, :] * C
        inside = (place >= 0) & (place < 3 * C) & (n < GROUP * OUT)[None, :]
        at = weight + (n % OUT)[None, :] * (9 * C) + i * 3 * C + place
        rows = with_one_more(rows, tl.load(at, mask=inside, other=0.0))
    return rows


@triton.jit
def _add_row(total, patches, taps, ROW: tl.constexpr):
    """A sum, plus the products of patches with a row of the window, part by part."""
    for i in tl.static_range(len(patches)):
        total = multiply(patches[i], taps[i][ROW], total)
    return total


@triton.jit
def _convolve_kernel(
    x, weight, bias, residual, out, tiles, strips, columns, height, width,
    C: tl.constexpr, OUT: tl.constexpr, GROUP: tl.constexpr, WITH_RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, PLACES: tl.constexpr, SPAN: tl.constexpr, K1: tl.constexpr,
    K2: tl.constexpr, N: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Each row of the map is read once for the three rows of the result it belongs to, whose sums are kept."""
    after_the_kernel_before(DEPENDENT)
    n, k1 = tl.arange(0, N), tl.arange(0, K1)
    k2 = K1 + tl.arange(0, K2 if K2 > 0 else 16)
    taps = (_taps(weight, n, k1, C, OUT, GROUP),)
    if K2 > 0:
        taps = with_one_more(taps, _taps(weight, n, k2, C, OUT, GROUP))
    shift = tl.load(bias + n % OUT, mask=n < GROUP * OUT, other=0.0).to(tl.float32)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        place = tile % columns * PLACES + tl.arange(0, PLACES)
        strip = tile // columns
        first_row = strip % strips * ROWS
        image = (strip // strips).to(tl.int64) * height * width
        first = (place * GROUP - 1) * C
        own = place[:, None] * (GROUP * OUT) + n[None, :]
        older = tl.zeros((PLACES, N), tl.float32)
        newer = tl.zeros((PLACES, N), tl.float32)
        coming = _patches(x, image, first_row - 1, first, height, width, C, SPAN, K1, K2)
        for r in tl.static_range(ROWS + 2):
            patches = coming
            if r <= ROWS:  # the next row's, so that it arrives while this one is worked on
                coming = _patches(x, image, first_row + r, first, height, width, C, SPAN, K1, K2)
            row = first_row + r - 2
            start = (image + row.to(tl.int64) * width) * OUT
            inside = (own < width * OUT * (row < height).to(tl.int32)) & (n < GROUP * OUT)[None, :]
            if r >= 2:
                if WITH_RESIDUAL:
                    kept = tl.load(residual + start + own, mask=inside, other=0.0).to(tl.float32)
                y = _add_row(older, patches, taps, 2)
            if r >= 1 and r <= ROWS:
                older = _add_row(newer, patches, taps, 1)
            if r < ROWS:
                newer = _add_row(tl.zeros((PLACES, N), tl.float32), patches, taps, 0)
            if r >= 2:
                y += shift[None, :]
                if WITH_RESIDUAL:
                    y += kept
                if RELU:
                    y = tl.maximum(y, 0.0)
                tl.store(out + start + own, y, mask=inside)


@convolution.convolve.kernel
def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    relu: bool = False,
    stride: int = 1,  # the only one that it is taken for
    tiles: ConvolutionTiles | None = None,
) -> Tensor:
    x, weight = x.contiguous(), weight.contiguous(memory_format=torch.channels_last)
    residual = x if residual is None else residual.contiguous()
    batch, height, width, channels = x.shape
    count = weight.shape[0]
    out = x.new_empty(batch, height, width, count)
    tiles = tiles or tiles_for(batch * height * width, count)
    places = min(tiles.pixels // tiles.group, padded(triton.cdiv(width, tiles.group)))
    span, k1, k2 = _spans((tiles.group + 2) * channels)
    columns, strips = triton.cdiv(width, places * tiles.group), triton.cdiv(height, tiles.rows)
    total = batch * strips * columns
    _convolve_kernel[(min(total, multiprocessors(x.device) * tiles.programs),)](
        x, weight, bias, residual, out, total, strips, columns, height, width, C=channels, OUT=count,
        GROUP=tiles.group, WITH_RESIDUAL=residual is not x, RELU=relu, ROWS=tiles.rows,
        PLACES=places, SPAN=span, K1=k1, K2=k2, N=padded(tiles.group * count),
        num_warps=tiles.warps, num_stages=tiles.stages, **launch_options(x.device),
    )  # fmt: skip
    return out


@triton.jit
def _halved_patches(image, row, first, k, height, width, inside, C: tl.constexpr, START: tl.constexpr, K: tl.constexpr):
    """Elements `first + k` of three rows of the map, zero outside."""
    rows = ()
    for i in tl.static_range(3):
        valid = inside & (row + i >= 0) & (row + i < height)
        place = first[:, None] + k[None, :]
        ok = (place >= 0) & (place < width * C) & valid[:, None]
        if START + K > 3 * C:
            ok &= k[None, :] < 3 * C
        rows = with_one_more(
            rows, tl.load(image + (row + i)[:, None].to(tl.int64) * (width * C) + place, mask=ok, other=0.0)
        )
    return rows


@triton.jit
def _chunk_taps(weight, n, k, ROW: tl.constexpr, C: tl.constexpr, HIDDEN: tl.constexpr, EVEN: tl.constexpr):
    place = weight + n[None, :] * (9 * C) + ROW * 3 * C + k[:, None]
    if EVEN:
        return tl.load(place)
    return tl.load(place, mask=(n < HIDDEN)[None, :] & (k < 3 * C)[:, None], other=0.0)


@triton.jit
def _halve_and_mix_kernel(
    x, weight, bias, mix, mix_bias, out, height, width, out_width, count,
    C: tl.constexpr, HIDDEN: tl.constexpr, OUT: tl.constexpr, PLACES: tl.constexpr, CHUNK: tl.constexpr,
    K1: tl.constexpr, K2: tl.constexpr, N: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The hidden channels are made, and added into the result, a chunk at a time; they are never stored."""
    after_the_kernel_before(DEPENDENT)
    k1, n = tl.arange(0, K1), tl.arange(0, N)
    k2 = K1 + tl.arange(0, K2 if K2 > 0 else 16)
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    image = x + tl.program_id(1).to(tl.int64) * height * width * C
    row, first = place // out_width * 2 - 1, (place % out_width * 2 - 1) * C
    inside = place < count
    patches1 = _halved_patches(image, row, first, k1, height, width, inside, C, 0, K1)
    if K2 > 0:
        patches2 = _halved_patches(image, row, first, k2, height, width, inside, C, K1, K2)
    total = tl.zeros((PLACES, N), tl.float32)
    for start in tl.range(0, HIDDEN, CHUNK, num_stages=STAGES):
        h = start + tl.arange(0, CHUNK)
        hidden = tl.zeros((PLACES, CHUNK), tl.float32)
        for i in tl.static_range(3):
            hidden = multiply(patches1[i], _chunk_taps(weight, h, k1, i, C, HIDDEN, EVEN), hidden)
        if K2 > 0:
            for i in tl.static_range(3):
                hidden = multiply(patches2[i], _chunk_taps(weight, h, k2, i, C, HIDDEN, EVEN), hidden)
        hidden += tl.load(bias + h, mask=h < HIDDEN, other=0.0).to(tl.float32)[None, :]
        hidden = tl.maximum(hidden, 0.0).to(mix.dtype.element_ty)
        if EVEN:
            columns = tl.load(mix + n[None, :] * HIDDEN + h[:, None])
        else:
            columns = tl.load(
                mix + n[None, :] * HIDDEN + h[:, None], mask=(n < OUT)[None, :] & (h < HIDDEN)[:, None], other=0.0
            )
        total = multiply(hidden, columns, total)
    total += tl.load(mix_bias + n, mask=n < OUT, other=0.0).to(tl.float32)[None, :]
    out += tl.program_id(1).to(tl.int64) * count * OUT
    where = place[:, None].to(tl.int64) * OUT + n[None, :]
    tl.store(out + where, total, mask=inside[:, None] & (n < OUT)[None, :])


@convolution.halve_and_mix.kernel
def halve_and_mix(
    x: Tensor, weight: Tensor, bias: Tensor, mix: Tensor, mix_bias: Tensor, tiles: MixTiles | None = None
) -> Tensor:
    x, weight, mix = x.contiguous(), weight.contiguous(memory_format=torch.channels_last), mix.t().contiguous()
    batch, height, width, channels = x.shape
    hidden, count = weight.shape[0], mix.shape[0]
    out_height, out_width = triton.cdiv(height, 2), triton.cdiv(width, 2)
    out = x.new_empty(batch, out_height, out_width, count)
    pixels = out_height * out_width
    tiles = tiles or mix_tiles_for(channels)
    _, k1, k2 = _spans(3 * channels)
    n = padded(count)
    even = k1 + k2 == 3 * channels and hidden % tiles.chunk == 0 and n == count
    _halve_and_mix_kernel[(triton.cdiv(pixels, tiles.pixels), batch)](
        x, weight, bias, mix, mix_bias, out, height, width, out_width, pixels, C=channels, HIDDEN=hidden, OUT=count,
        PLACES=tiles.pixels, CHUNK=tiles.chunk, K1=k1, K2=k2, N=n, EVEN=even, STAGES=tiles.stages,
        num_warps=tiles.warps, **launch_options(x.device),
    )  # fmt: skip
    return out


@triton.jit
def _image_kernel(
    image, weight, bias, out, height, width, out_width, count, image_stride, band_stride, row_stride, column_stride,
    BANDS: tl.constexpr, OUT: tl.constexpr, PLACES: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Patches are gathered with the pixels last, the direction in which the image's own pixels lie side by side."""
    place, n = tl.program_id(0) * PLACES + tl.arange(0, PLACES), tl.arange(0, N)
    y, x = place // out_width * 2 - 1, place % out_width * 2 - 1
    inside = place < count
    image += tl.program_id(1).to(tl.int64) * image_stride
    corner = y.to(tl.int64) * row_stride + x.to(tl.int64) * column_stride
    total = tl.zeros((PLACES, N), tl.float32)
    for start in tl.static_range(0, 9 * BANDS, K):
        k = start + tl.arange(0, K)
        band, i, j = (k % BANDS).to(tl.int64), k // (3 * BANDS), k // BANDS % 3
        step = band * band_stride + i.to(tl.int64) * row_stride + j.to(tl.int64) * column_stride
        row, column = y[None, :] + i[:, None], x[None, :] + j[:, None]
        ok = (row >= 0) & (row < height) & (column >= 0) & (column < width) & inside[None, :]
        ok &= (k < 9 * BANDS)[:, None]
        patch = tl.load(image + (step[:, None] + corner[None, :]), mask=ok, other=0).to(weight.dtype.element_ty)
        taps = tl.load(
            weight + n[None, :] * (9 * BANDS) + k[:, None],
            mask=(k < 9 * BANDS)[:, None] & (n < OUT)[None, :],
            other=0.0,
        )
        total = multiply(tl.trans(patch), taps, total)
    total += tl.load(bias + n, mask=n < OUT, other=0.0).to(tl.float32)[None, :]
    out += tl.program_id(1).to(tl.int64) * count * OUT
    where = place[:, None].to(tl.int64) * OUT + n[None, :]
    tl.store(out + where, tl.maximum(total, 0.0), mask=inside[:, None] & (n < OUT)[None, :])


@convolution.convolve_image.kernel
def convolve_image(image: Tensor, weight: Tensor, bias: Tensor, places: int = 128) -> Tensor:
    """Each program makes so many pixels."""
    weight = weight.contiguous(memory_format=torch.channels_last)
    batch, bands, height, width = image.shape
    count = weight.shape[0]
    out_height, out_width = triton.cdiv(height, 2), triton.cdiv(width, 2)
    out = weight.new_empty(batch, out_height, out_width, count)
    pixels = out_height * out_width
    _image_kernel[(triton.cdiv(pixels, places), batch)](
        image, weight, bias, out, height, width, out_width, pixels, *image.stride(), BANDS=bands, OUT=count,
        PLACES=places, K=min(32, padded(9 * bands)), N=padded(count), num_warps=4,
    )  # fmt: skip
    return out


def _spans(span: int) -> tuple[int, int, int]:
    """The elements of a patch's row, and two powers of two that hold them."""
    first = max(16, 1 << (span.bit_length() - 1))
    return span, first, padded(span - first) if span > first else 0
