"""The depthwise kernels on a CUDA device, against the definition in float64."""

import pytest
import torch

from crispseg.ops.maps.depthwise import depthwise3x3, packed
from tests.conftest import relative_error
from tests.ops.maps.test_depthwise import (
    check,
    check_written_gradient,
    make_map,
    make_weights,
    public,
    shifted_products,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# maps of crisp_tiny at 512 px, then odd ones
SIZES = [
    (128, 128, 64),
    (64, 64, 384),
    (16, 16, 1152),
    (33, 47, 96),
    (1, 1, 512),
    (1, 301, 48),
    (97, 1, 320),
    (5, 7, 3),
]


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    monkeypatch.delenv("CRISPSEG_OPS_BACKEND", raising=False)


def on_gpu(size, dtype=torch.float32, **options):
    weight, bias = make_weights(size[2], device="cuda")
    return make_map(size, dtype, device="cuda", **options), weight, bias


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("shape", [("silu", False, 1), ("none", True, 1), ("relu", False, 2)], ids=str)
def test_result_and_gradients(dtype, scale, size, shape):
    activation, residual, stride = shape
    check(public, *on_gpu(size, dtype, scale=scale), residual, activation, stride)


@pytest.mark.parametrize("margin", [1, 2, 4, 8, 16, 65])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_views_into_wider_maps(margin, dtype, stride):
    check(public, *on_gpu((20, 19, 128), dtype, margin=margin), activation="silu", stride=stride)


@pytest.mark.parametrize("margin", [1, 4, 8, 64])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(128, 128, 256), (20, 19, 128), (33, 1, 48)], ids=str)
def test_gradients_into_wider_maps(margin, dtype, stride, size):
    check_written_gradient(size, margin, "silu", False, stride, dtype, "cuda")


@pytest.mark.parametrize("activation", ["none", "silu", "relu"])
@pytest.mark.parametrize("residual", [False, True])
def test_activation_with_residual(activation, residual):
    check(public, *on_gpu((20, 19, 64)), residual, activation)


def test_packed_and_half_weights():
    x, weight, bias = on_gpu((20, 19, 64), torch.bfloat16)
    check(public, x, packed(weight), bias, activation="silu")
    check(public, x, weight.bfloat16(), bias.bfloat16(), activation="silu")
    check(public, x, weight, None)


def test_many_tall_strips():
    check(public, *on_gpu((513, 259, 64), batch=4), activation="silu")


def test_more_than_two_to_the_31_elements():
    x = torch.zeros(1, 4097, 4097, 130, dtype=torch.bfloat16, device="cuda")
    weight, bias = make_weights(130, device="cuda")
    corner = make_map((9, 9, 130), torch.bfloat16, batch=1, device="cuda")
    x[:, -9:, -9:] = corner
    with torch.no_grad():
        found = depthwise3x3(x, weight, bias)[:, -8:, -8:]
    truth = shifted_products(corner.double(), weight.double(), bias.double())[:, 1:, 1:]
    assert relative_error(found, truth) < 1e-2


def test_compiles_to_one_graph_forward_and_backward():
    def function(x, weight, bias, residual, activation, stride):
        wide = torch.cat([x, x], -1)  # so that the operator sees a view that the compiler made
        return public(wide[..., x.shape[-1] :], weight, bias, residual, activation, stride)

    check(torch.compile(function, fullgraph=True), *on_gpu((40, 33, 64), torch.bfloat16), activation="silu")


def test_captured_graph_replays():
    x, weight, bias = on_gpu((32, 32, 64))
    with torch.no_grad():
        depthwise3x3(x, weight, bias, residual=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = depthwise3x3(x, weight, bias, residual=True)
        x.copy_(torch.randn_like(x))
        graph.replay()
        expected = depthwise3x3(x, weight, bias, residual=True)
    assert torch.equal(result, expected)
