"""Winograd's convolution against the plain one in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from crispseg.ops.cpu import winograd
from crispseg.ops.dispatch import why_not_on_a_cpu
from tests.conftest import relative_error

pytestmark = pytest.mark.skipif(why_not_on_a_cpu("onednn") is not None, reason="needs torch with oneDNN")


def convolved(x, weight, bias):
    bias = None if bias is None else bias.double()
    y = functional.conv2d(x.double().permute(0, 3, 1, 2), weight.double(), bias, padding=1)
    return y.permute(0, 2, 3, 1)


@torch.no_grad()
@given(st.integers(1, 3), st.integers(1, 21), st.integers(1, 21), st.booleans(), st.sampled_from([1.0, 1e3, 1e-3]))
def test_any_size(batch, height, width, relu, scale):
    x, weight, bias = scale * torch.randn(batch, height, width, 5), torch.randn(7, 5, 3, 3), torch.randn(7)
    truth = convolved(x, weight, bias)
    found = winograd.Winograd.of(weight, bias, relu)(x)
    assert found.is_contiguous()
    assert relative_error(found, truth.relu() if relu else truth) < 2e-6


@torch.no_grad()
def test_many_channels_without_bias():
    x, weight = torch.randn(1, 30, 26, 256).relu(), torch.randn(128, 256, 3, 3)
    assert relative_error(winograd.Winograd.of(weight, None)(x), convolved(x, weight, None)) < 3e-6


@torch.no_grad()
def test_parts_do_not_show(monkeypatch):
    x, weight, bias = torch.randn(2, 37, 22, 4), torch.randn(4, 4, 3, 3), torch.randn(4)
    convolution = winograd.Winograd.of(weight, bias)
    whole = convolution(x)
    monkeypatch.setattr(winograd, "_TILES", 7)
    torch.testing.assert_close(convolution(x), whole)


def test_the_algorithm_is_exact():
    """Of a line, as an identity of polynomials; the square's matrices are Kronecker products of the line's."""
    t = winograd.transforms()
    tile, weight = torch.randn(36, dtype=torch.float64), torch.randn(9, dtype=torch.float64)
    found = t.result @ ((t.weight @ weight) * (t.tile @ tile))
    truth = functional.conv2d(tile.view(1, 1, 6, 6), weight.view(1, 1, 3, 3)).flatten()
    torch.testing.assert_close(found, truth)
    torch.testing.assert_close(t.result @ t.bias, torch.ones(16, dtype=torch.float64))


@pytest.mark.parametrize(
    "shape", [(128, 256, 3, 3), (8, 16, 3, 3), (512, 512, 3, 3), (128, 128, 1, 1), (128, 128, 5, 5)]
)
@torch.no_grad()
def test_same_convolution(shape):
    out, channels, height, width = shape
    weight, bias, x = torch.randn(shape), torch.randn(out), torch.randn(1, 6, 9, channels)
    convolution = winograd.same_convolution(weight, bias, relu=False)
    assert isinstance(convolution, winograd.Winograd) == (shape == (128, 256, 3, 3))
    y = functional.conv2d(
        x.double().permute(0, 3, 1, 2), weight.double(), bias.double(), padding=(height // 2, width // 2)
    )
    assert relative_error(convolution(x), y.permute(0, 2, 3, 1)) < 3e-6
