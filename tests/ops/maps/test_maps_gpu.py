"""The maps' kernels on a CUDA device, against their definitions in float64."""

import pytest
import torch

from crispseg.ops.common.norm import Norm
from crispseg.ops.maps import convolution, normalize, resizing
from tests.conftest import relative_error
from tests.ops.maps.test_maps import normalised, resized, windows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HALVES = [torch.bfloat16, torch.float16]


def draw(*shape, dtype):
    return torch.randn(shape, device="cuda").to(dtype)


def agree(function, formula, tensors):
    with torch.no_grad():
        found, truth = function(*tensors), formula(*(x.double() for x in tensors))
    assert found.shape == truth.shape
    assert found.is_contiguous()
    assert relative_error(found, truth) < 1e-2


def filters(count, channels, dtype):
    weight = draw(count, channels, 3, 3, dtype=dtype) / (9 * channels) ** 0.5
    return weight.contiguous(memory_format=torch.channels_last), draw(count, dtype=dtype)


MAPS = [(256, 256, 32), (33, 75, 32), (1, 1, 32), (128, 130, 16), (40, 41, 24), (20, 300, 48), (5, 7, 4), (64, 1, 40)]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("size", MAPS, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_convolutions(batch, size, scale, dtype):
    height, width, channels = size
    scale = min(scale, 1e2) if dtype == torch.float16 else scale  # its sums would leave float16's range
    x, residual = scale * draw(2, batch, height, width, channels, dtype=dtype)
    weight, bias = filters(channels, channels, dtype)
    agree(
        lambda x, w, b: convolution.convolve(x, w, b, relu=True),
        lambda x, w, b: windows(x, w, b).clamp(min=0),
        (x, weight, bias),
    )
    agree(
        lambda x, w, b, r: convolution.convolve(x, w, b, residual=r),
        lambda x, w, b, r: windows(x, w, b) + r,
        (x, weight, bias, residual),
    )
    mix, mix_bias = (
        draw(2 * channels, 8 * channels, dtype=dtype).t() / (8 * channels) ** 0.5,
        draw(2 * channels, dtype=dtype),
    )
    agree(
        convolution.halve_and_mix,
        lambda x, w, b, m, c: windows(x, w, b, 2).clamp(min=0) @ m + c,
        (x, *filters(8 * channels, channels, dtype), mix, mix_bias),
    )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16, torch.uint8], ids=str)
@pytest.mark.parametrize(
    "size", [(1, 3, 512, 512), (2, 3, 75, 131), (3, 1, 1, 1), (1, 4, 64, 33), (2, 16, 40, 40)], ids=str
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_images(size, layout, kind, dtype):
    image = (50 * torch.rand(size, device="cuda")).to(kind).to(memory_format=layout)
    weight, bias = filters(32, size[1], dtype)
    with torch.no_grad():
        found = convolution.convolve_image(image, weight, bias)
    truth = windows(image.to(dtype).double().permute(0, 2, 3, 1), weight.double(), bias.double(), 2).clamp(min=0)
    assert found.dtype == dtype
    assert relative_error(found, truth) < 1e-2


def test_an_image_of_more_than_two_to_the_31_elements():
    image = torch.zeros(1, 16, 12000, 12000, dtype=torch.uint8, device="cuda")
    image[..., -9:, -9:] = torch.randint(0, 256, (9, 9), device="cuda")
    weight, bias = filters(8, 16, torch.bfloat16)
    with torch.no_grad():
        found = convolution.convolve_image(image, weight, bias)[:, -4:, -4:]
        expected = convolution.convolve_image(image[..., -10:, -10:], weight, bias)[:, -4:, -4:]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("size", [(128, 128, 64), (16, 16, 512), (33, 47, 96), (1, 1, 32), (7, 5, 768)], ids=str)
def test_layer_norm(size, scale, dtype):
    x, norm = scale * (draw(2, *size, dtype=dtype) + 1), draw(2, size[2], dtype=dtype)
    agree(lambda *args: normalize.layer_norm(*args, 1e-5), lambda *args: normalised(*args, 1e-5), (x, *norm))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize(
    ("fine", "coarse", "channels", "count"),
    [
        ((128, 128), (64, 64), 64, 256),
        ((64, 64), (32, 32), 128, 256),
        ((32, 32), (16, 16), 256, 256),
        ((75, 33), (38, 17), 48, 128),
        ((1, 1), (1, 1), 32, 128),
        ((5, 7), (3, 4), 512, 24),
    ],
)
def test_norm_relu_add(fine, coarse, channels, count, scale, dtype):
    x, norm = scale * draw(2, *fine, channels, dtype=dtype), draw(2, channels, dtype=dtype)
    weight, bias = draw(count, channels, dtype=dtype).t() / channels**0.5, draw(count, dtype=dtype)

    def formula(x, gain, shift, weight, bias, coarser):
        return (normalised(x, gain, shift, 1e-5) @ weight + bias).clamp(min=0) + resized(coarser, fine)

    agree(
        lambda x, gain, shift, *rest: normalize.norm_relu_add(x, Norm(gain, shift, 1e-5), *rest),
        formula,
        (x, *norm, weight, bias, draw(2, *coarse, count, dtype=dtype)),
    )


@pytest.mark.parametrize(
    ("low", "size"),
    [((128, 128), (512, 512)), ((20, 34), (75, 131)), ((2, 2), (1, 1)), ((1, 18), (8, 1033)), ((64, 64), (30, 20))],
)
def test_upsample(low, size):
    scores = torch.randn(2, 6, *low, device="cuda")
    assert resizing.upsample.takes(scores, size)
    found = resizing.upsample(scores, size)
    truth = resized(scores.double().permute(0, 2, 3, 1), size).permute(0, 3, 1, 2)
    assert relative_error(found, truth) < 1e-5
    torch.testing.assert_close(found, resizing.upsample.formula(scores, size))


def test_captured_graph_replays():
    x, (weight, bias) = draw(1, 40, 40, 32, dtype=torch.bfloat16), filters(32, 32, torch.bfloat16)
    with torch.no_grad():
        convolution.convolve(x, weight, bias, relu=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = convolution.convolve(x, weight, bias, relu=True)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(found, convolution.convolve(x, weight, bias, relu=True))
