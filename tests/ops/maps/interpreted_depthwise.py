"""The depthwise kernels through Triton's interpreter; run by `test_interpreted.py`."""

import pytest
import torch

from crispseg.ops.maps import depthwise_gradients, depthwise_kernels
from crispseg.ops.maps.depthwise import packed
from tests.conftest import relative_error
from tests.ops.maps.test_depthwise import (
    check,
    check_written_gradient,
    make_map,
    make_weights,
    shifted_products,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = {"plain": (False, 1), "residual": (True, 1), "halved": (False, 2)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("activation", ["none", "silu", "relu"])
def test_activations_on_a_view_into_a_wider_map(activation, shape):
    residual, stride = shape
    check(depthwise_kernels._forward, make_map((5, 7, 12), margin=3), *make_weights(12), residual, activation, stride)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("stride", [1, 2])
def test_precisions(dtype, scale, stride):
    x = make_map((4, 6, 16), dtype, batch=1, scale=scale)
    check(depthwise_kernels._forward, x, *make_weights(16), activation="silu", stride=stride)


@pytest.mark.parametrize("size", [(1, 1, 8), (1, 11, 3), (10, 1, 3), (2, 2, 40)], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_small_and_narrow_maps(size, stride):
    check(depthwise_kernels._forward, make_map(size, batch=1), *make_weights(size[2]), stride=stride)


def test_half_precision_weights():
    weight, bias = make_weights(8, torch.bfloat16)
    check(depthwise_kernels._forward, make_map((3, 5, 8), torch.bfloat16, batch=1), weight, bias, activation="relu")


def test_without_bias_and_packed():
    weight, _ = make_weights(8)
    check(depthwise_kernels._forward, make_map((3, 5, 8), batch=1), packed(weight), None, residual=True)


def test_channels_first_memory():
    x = torch.randn(1, 6, 4, 5).permute(0, 2, 3, 1)
    check(depthwise_kernels._forward, x, *make_weights(6), activation="silu")


@pytest.mark.parametrize("stride", [1, 2])
def test_every_cut_gives_the_same(stride):
    """Strips of several rows that do not divide the map, and strips of single rows."""
    x, (weight, bias) = make_map((7, 6, 12), batch=1), make_weights(12)
    leaves = [v.double().requires_grad_() for v in (x, weight, bias)]
    truth = shifted_products(*leaves, activation="silu", stride=stride)
    gradient = torch.randn(truth.shape)
    expected = torch.autograd.grad(truth, leaves, gradient.double())
    for tiles in (depthwise_kernels.DepthwiseTiles(4, 8, 3), depthwise_kernels.DepthwiseTiles(8, 16, 1)):
        asked = depthwise_kernels.Depthwise(weight, bias, activation="silu", stride=stride)
        assert relative_error(depthwise_kernels.forward(x, asked, tiles), truth) < 1e-5
        for found, e in zip(depthwise_gradients.backward(gradient, x, asked, tiles), expected, strict=True):
            assert relative_error(found, e) < 1e-5


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("margin", [1, 8])
def test_gradient_into_a_wider_map(activation, shape, margin):
    check_written_gradient((7, 9, 16), margin, activation, *shape)


def test_taps_in_any_order():
    weight, bias = make_weights(8)
    check(depthwise_kernels._forward, make_map((3, 5, 8), batch=1), weight.transpose(2, 3), bias, activation="silu")


def test_the_operators_are_registered_well():
    x, (weight, bias) = make_map((3, 4, 4), batch=1), make_weights(4)
    leaves = [v.requires_grad_() for v in (x, weight, bias)]
    torch.library.opcheck(depthwise_kernels._forward, (*leaves, False, "silu", 1))
    torch.library.opcheck(depthwise_kernels._forward, (*leaves[:2], None, False, "none", 2))


def test_compiles_to_one_graph():
    compiled = torch.compile(lambda *args: depthwise_kernels._forward(*args), fullgraph=True, backend="aot_eager")
    check(compiled, make_map((3, 5, 4), margin=2), *make_weights(4), activation="silu")
