"""Convolutions, norms and resizes of maps against their definitions written out, in float64. The kernels' tests are in
`interpreted_maps.py` and `test_maps_gpu.py`."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from crispseg.ops.common.norm import Norm
from crispseg.ops.maps.convolution import convolve, convolve_image, halve_and_mix
from crispseg.ops.maps.normalize import layer_norm, norm_relu_add
from crispseg.ops.maps.resizing import add_resized, plain_gradients, upsample


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def windows(x, weight, bias, stride=1):
    """The definition of a 3x3 convolution of x (B, H, W, C): one product for each of the nine places."""
    height, width = x.shape[1:3]
    framed = torch.nn.functional.pad(x, (0, 0, 1, 1, 1, 1))
    parts = (
        framed[:, i : i + height : stride, j : j + width : stride] @ weight[:, :, i, j].t()
        for i in range(3)
        for j in range(3)
    )
    return sum(parts) + bias


def normalised(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def neighbours(index, low, high):
    """Of a pixel of the larger map in the smaller one, by the pixels' centres: two indices, and the second's weight."""
    place = min(max((index + 0.5) * low / high - 0.5, 0), low - 1)
    first = int(place)
    return first, min(first + 1, low - 1), place - first


def matrix(low, high):
    """Resizing along one axis, (high, low)."""
    found = torch.zeros(high, low, dtype=torch.float64)
    for i in range(high):
        first, second, weight = neighbours(i, low, high)
        found[i, first] += 1 - weight
        found[i, second] += weight
    return found


def resized(x, size):
    """x (B, H, W, C)."""
    rows, columns = (matrix(low, high).to(x.device) for low, high in zip(x.shape[1:3], size, strict=True))
    return torch.einsum("ih,jw,bhwc->bijc", rows, columns, x)


SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))


@given(SIZES, st.integers(1, 6), st.integers(1, 5), st.booleans(), st.booleans(), st.sampled_from([1, 2]))
def test_convolve(size, channels, count, with_residual, relu, stride):
    x, weight, bias = draw(2, *size, channels), draw(count, channels, 3, 3), draw(count)
    truth = windows(x, weight, bias, stride)
    residual = torch.randn_like(truth) if with_residual else None
    truth = truth if residual is None else truth + residual
    found = convolve(x, weight, bias, residual, relu, stride)
    torch.testing.assert_close(found, truth.clamp(min=0) if relu else truth)


@given(SIZES, st.integers(1, 6))
def test_convolve_image(size, bands):
    image, weight, bias = draw(2, bands, *size), draw(4, bands, 3, 3), draw(4)
    truth = windows(image.permute(0, 2, 3, 1), weight, bias, 2).clamp(min=0)
    torch.testing.assert_close(convolve_image(image, weight, bias), truth)


def test_an_image_of_bytes():
    image, weight, bias = torch.randint(0, 256, (1, 3, 5, 4), dtype=torch.uint8), draw(4, 3, 3, 3), draw(4)
    torch.testing.assert_close(convolve_image(image, weight, bias), convolve_image(image.double(), weight, bias))


@given(SIZES)
def test_halve_and_mix(size):
    x, weight, bias, mix, mix_bias = draw(2, *size, 3), draw(8, 3, 3, 3), draw(8), draw(8, 5), draw(5)
    truth = windows(x, weight, bias, 2).clamp(min=0) @ mix + mix_bias
    torch.testing.assert_close(halve_and_mix(x, weight, bias, mix, mix_bias), truth)


def test_layer_norm():
    x, weight, bias = draw(2, 3, 4, 8), draw(8), draw(8)
    torch.testing.assert_close(layer_norm(x, weight, bias, 1e-3), normalised(x, weight, bias, 1e-3))


@given(SIZES, SIZES)
def test_norm_relu_add(size, coarse):
    x, gain, shift, weight, bias, coarser = (
        draw(2, *size, 8),
        draw(8),
        draw(8),
        draw(8, 5),
        draw(5),
        draw(2, *coarse, 5),
    )
    truth = (normalised(x, gain, shift, 1e-3) @ weight + bias).clamp(min=0) + resized(coarser, size)
    torch.testing.assert_close(norm_relu_add(x, Norm(gain, shift, 1e-3), weight, bias, coarser), truth)


@given(SIZES, SIZES)
def test_upsample(low, size):
    scores = draw(2, 3, *low)
    truth = resized(scores.permute(0, 2, 3, 1), size).permute(0, 3, 1, 2)
    torch.testing.assert_close(upsample(scores, size), truth)


@given(SIZES, SIZES)
def test_gradients_of_a_sum_where_their_kernel_does_not_run(low, size):
    finer, coarser = torch.randn(2, 3, *size, requires_grad=True), torch.randn(2, 3, *low, requires_grad=True)
    g = torch.randn(2, 3, *size)
    truth = torch.autograd.grad(add_resized.formula(finer, coarser), [coarser, finer], g)
    for found, expected in zip(plain_gradients(g.permute(0, 2, 3, 1), *low), truth, strict=True):
        torch.testing.assert_close(found.permute(0, 3, 1, 2), expected)
