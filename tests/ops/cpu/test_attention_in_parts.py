"""Attention by parts against the formulas in float64; the formulas' own tests hold these to loops."""

import pytest
import torch

from crispseg.ops.common.norm import Norm
from crispseg.ops.cpu import attention_in_parts
from crispseg.ops.cpu.attention_in_parts import Writing
from crispseg.ops.dispatch import why_not_on_a_cpu
from crispseg.ops.infer.matching import best_cosines
from crispseg.ops.infer.pixel_attention import pixels_attend_tokens, read_pixels
from tests.conftest import relative_error

pytestmark = pytest.mark.skipif(why_not_on_a_cpu("onednn") is not None, reason="needs torch with oneDNN")


def attended(*tensors):
    """By the formula; the last tensors are the norm's."""
    *given, weight, shift = (x.double() for x in tensors)
    return pixels_attend_tokens(*given, Norm(weight, shift, 1e-5))


@pytest.mark.parametrize("numbers", [1, 40, 10**6])
@torch.no_grad()
def test_in_half_precision(monkeypatch, numbers):
    """As near to float64 as rounding inputs and results lets it be; weights add up in float32."""
    monkeypatch.setattr(attention_in_parts, "_NUMBERS", numbers)
    pixels, (keys, values, queries) = torch.randn(2, 60, 8), torch.randn(3, 2, 3, 2, 8)
    added, (bias, weight, shift) = torch.randn(2, 3, 2), torch.randn(3, 8)
    projection, prototypes = torch.randn(2, 5, 8), torch.randn(2, 4, 3, 4)
    given = (pixels, keys, added, values, bias, weight, shift, queries, projection, prototypes)
    pixels, keys, added, values, bias, weight, shift, queries, projection, prototypes = (x.bfloat16() for x in given)
    writing = Writing(keys, added, values, bias, Norm(weight, shift, 1e-5))
    images = attention_in_parts.split(pixels.clone())
    written, read = attention_in_parts.write_and_read(images, writing, queries, projection)
    cosines = attention_in_parts.best_cosines(written, prototypes, 7.0)
    truth = attended(pixels, keys, added, values, bias, weight, shift)
    found = torch.stack([torch.cat(list(parts)) for parts in written])
    assert found.dtype == read.dtype == torch.bfloat16 and cosines.dtype == torch.float32
    assert relative_error(found, truth) < 1e-2
    assert relative_error(read, read_pixels(queries.double(), truth, projection.double())) < 3e-2
    assert relative_error(cosines, best_cosines(truth.view(2, -1, 4), prototypes.double(), 7.0)) < 2e-2


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("numbers", [1, 40, 10**6])
@torch.no_grad()
def test_reading_writing_and_matching(monkeypatch, numbers, scale):
    monkeypatch.setattr(attention_in_parts, "_NUMBERS", numbers)
    pixels = scale * torch.randn(2, 23, 8)
    keys, values, queries, later = torch.randn(4, 2, 3, 2, 8)
    added, (bias, weight, shift) = torch.randn(2, 3, 2), torch.randn(3, 8)
    projection, prototypes = torch.randn(2, 5, 8), torch.randn(2, 4, 3, 4)
    images = attention_in_parts.split(pixels.clone())

    read = attention_in_parts.read(images, queries, projection)
    assert relative_error(read, read_pixels(queries.double(), pixels.double(), projection.double())) < 1e-5

    norm = Norm(weight, shift, 1e-5)
    written, read = attention_in_parts.write_and_read(
        images, Writing(keys, added, values, bias, norm), later, projection
    )
    truth = attended(pixels, keys, added, values, bias, weight, shift)
    found = torch.stack([torch.cat(list(parts)) for parts in written])
    assert relative_error(found, truth) < 1e-5
    assert relative_error(read, read_pixels(later.double(), truth, projection.double())) < 1e-5

    cosines = attention_in_parts.best_cosines(written, prototypes, 7.0)
    descriptors = truth.view(2, -1, 4)  # two side by side
    assert relative_error(cosines, best_cosines(descriptors, prototypes.double(), 7.0)) < 1e-5


@torch.no_grad()
def test_parts_of_different_lengths():
    pixels = torch.randn(2, 48, 8)
    keys, values, queries = torch.randn(3, 2, 3, 2, 8)
    added, (bias, weight, shift), projection = torch.randn(2, 3, 2), torch.randn(3, 8), torch.randn(2, 5, 8)
    truth = attended(pixels, keys, added, values, bias, weight, shift)
    writing = Writing(keys, added, values, bias, Norm(weight, shift, 1e-5))
    parts = [image.split(32) for image in pixels]
    written, read = attention_in_parts.write_and_read(parts, writing, queries, projection)
    assert relative_error(torch.stack([torch.cat(list(parts)) for parts in written]), truth) < 1e-5
    assert relative_error(read, read_pixels(queries.double(), truth, projection.double())) < 1e-5
