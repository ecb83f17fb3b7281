"""The maps' kernels through Triton's interpreter; run by `test_interpreted.py`."""

import pytest
import torch

from crispseg.ops.common.norm import Norm
from crispseg.ops.maps import convolution_kernels as convolutions
from crispseg.ops.maps import normalize_kernels as norms
from crispseg.ops.maps import resizing_kernels as resizes
from crispseg.ops.maps.convolution_kernels import ConvolutionTiles, MixTiles
from crispseg.ops.maps.normalize_kernels import AddTiles
from tests.conftest import relative_error
from tests.ops.maps.test_maps import normalised, resized, windows

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
DTYPES = list(BOUNDS)


def agree(kernel, formula, tensors, **options):
    """The kernel in the tensors' precision, the definition in float64."""
    truth = formula(*(x.double() for x in tensors))
    found = kernel(*tensors, **options)
    assert found.shape == truth.shape
    assert found.dtype == tensors[0].dtype
    assert relative_error(found, truth) < BOUNDS[tensors[0].dtype]


def draw(*shape, dtype):
    return torch.randn(shape).to(dtype)


CUTS = [ConvolutionTiles(1, 32, 1), ConvolutionTiles(2, 32, 2), ConvolutionTiles(3, 64, 2)]


@pytest.mark.parametrize(
    ("tiles", "dtype"), [*((t, torch.float32) for t in CUTS), *((CUTS[1], d) for d in DTYPES[1:])], ids=str
)
@pytest.mark.parametrize("size", [(5, 37, 32), (1, 1, 16), (4, 7, 4), (3, 9, 24)], ids=str)
def test_convolve(size, tiles, dtype):
    height, width, channels = size
    x, residual = draw(2, 2, height, width, channels, dtype=dtype)
    weight, bias = draw(channels, channels, 3, 3, dtype=dtype), draw(channels, dtype=dtype)
    agree(
        lambda x, w, b, r: convolutions.convolve(x, w, b, r, tiles=tiles),
        lambda x, w, b, r: windows(x, w, b) + r,
        (x, weight, bias, residual),
    )
    agree(
        lambda x, w, b: convolutions.convolve(x, w, b, relu=True, tiles=tiles),
        lambda x, w, b: windows(x, w, b).clamp(min=0),
        (x, weight, bias),
    )


def test_convolve_with_large_values_and_other_channels_out():
    x, weight, bias = 1e3 * torch.randn(1, 4, 6, 8), torch.randn(20, 8, 3, 3), torch.randn(20)
    agree(lambda *args: convolutions.convolve(*args), windows, (x, weight, bias))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(5, 18, 32, 128, 64), (1, 1, 4, 16, 8), (3, 9, 24, 96, 48)], ids=str)
def test_halve_and_mix(size, dtype):
    height, width, channels, hidden, count = size
    x = draw(2, height, width, channels, dtype=dtype)
    weight, bias = draw(hidden, channels, 3, 3, dtype=dtype) / 10, draw(hidden, dtype=dtype)
    mix, mix_bias = draw(count, hidden, dtype=dtype).t() / 10, draw(count, dtype=dtype)
    agree(
        convolutions.halve_and_mix,
        lambda x, w, b, m, c: windows(x, w, b, 2).clamp(min=0) @ m + c,
        (x, weight, bias, mix, mix_bias),
        tiles=MixTiles(32, 64, 4, 1),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bands", [1, 3, 4, 13])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_convolve_image(bands, layout, dtype):
    image = torch.randn(2, bands, 11, 17).to(memory_format=layout)
    weight, bias = draw(12, bands, 3, 3, dtype=dtype), draw(12, dtype=dtype)
    truth = windows(image.to(dtype).double().permute(0, 2, 3, 1), weight.double(), bias.double(), 2).clamp(min=0)
    found = convolutions.convolve_image(image, weight, bias, 32)
    assert found.dtype == dtype
    assert relative_error(found, truth) < BOUNDS[dtype]


def test_an_image_of_bytes_seen_through_a_crop():
    whole = torch.randint(0, 256, (1, 3, 12, 9), dtype=torch.uint8)
    weight, bias = torch.randn(8, 3, 3, 3), torch.randn(8)
    found = convolutions.convolve_image(whole[:, :, 2:9, 1:8], weight, bias)
    truth = windows(whole[:, :, 2:9, 1:8].double().permute(0, 2, 3, 1), weight.double(), bias.double(), 2)
    assert relative_error(found, truth.clamp(min=0)) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("shape", [(2, 3, 5, 24), (1, 1, 64), (70, 5)], ids=str)
def test_layer_norm(shape, scale, dtype):
    x = (scale * (torch.randn(shape) + 1)).to(dtype)
    norm = draw(shape[-1], dtype=dtype), draw(shape[-1], dtype=dtype)
    agree(
        lambda *args: norms.layer_norm(*args, 1e-5, elements=256),
        lambda *args: normalised(*args, 1e-5),
        (x, *norm),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("fine", "coarse", "channels", "count"),
    [((16, 16), (8, 8), 64, 256), ((5, 33), (3, 17), 24, 20), ((1, 1), (1, 1), 8, 16), ((7, 12), (2, 3), 128, 96)],
)
def test_norm_relu_add(fine, coarse, channels, count, dtype):
    x, norm = draw(2, *fine, channels, dtype=dtype) + 1, draw(2, channels, dtype=dtype)
    weight, bias = draw(count, channels, dtype=dtype).t() / channels**0.5, draw(count, dtype=dtype)
    coarser = draw(2, *coarse, count, dtype=dtype)

    def formula(x, gain, shift, weight, bias, coarser):
        return (normalised(x, gain, shift, 1e-5) @ weight + bias).clamp(min=0) + resized(coarser, fine)

    agree(
        lambda x, gain, shift, *rest: norms.norm_relu_add(x, Norm(gain, shift, 1e-5), *rest, AddTiles(32, 64, 4)),
        formula,
        (x, *norm, weight, bias, coarser),
    )


@pytest.mark.parametrize(
    ("low", "size"),
    [((4, 4), (16, 16)), ((2, 2), (1, 1)), ((6, 10), (11, 17)), ((1, 4), (7, 5)), ((9, 8), (5, 3)), ((2, 2), (40, 41))],
)
def test_upsample(low, size):
    scores = torch.randn(2, 3, *low)
    truth = resized(scores.double().permute(0, 2, 3, 1), size).permute(0, 3, 1, 2)
    assert relative_error(resizes.upsample(scores, size), truth) < 1e-5
