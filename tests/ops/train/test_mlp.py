"""Linear layers and the MLP against the formula in float64. The kernels' tests are in `interpreted_layers.py` and
`test_layers_gpu.py`."""

import math

import pytest
import torch

from crispseg.models.vssd import MLP
from crispseg.ops.train.mlp import linear, mlp
from tests.conftest import relative_error

BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


def linear_formula(x, weight, bias):
    return x @ weight.t() + bias


def relu_formula(x, weight, bias):
    return linear_formula(x, weight, bias).clamp(min=0)


def linear_relu(x, weight, bias):
    return linear(x, weight, bias, relu=True)


def mlp_formula(x, weight1, bias1, weight2, bias2):
    h = linear_formula(x, weight1, bias1)
    return linear_formula(h / 2 * (1 + torch.erf(h / math.sqrt(2))), weight2, bias2)


def make_layer(width, out, dtype=torch.float32, device="cpu"):
    weight = torch.randn(out, width, device=device) / math.sqrt(width)
    return weight.to(dtype), torch.randn(out, device=device).to(dtype)


def make_layers(width, hidden, out, dtype=torch.float32, device="cpu"):
    return *make_layer(width, hidden, dtype, device), *make_layer(hidden, out, dtype, device)


def check(function, formula, x, parameters, kind=None, kink=None):
    """Result (in the dtype `kind`; x's if not given) and gradients against the formula in float64. Where the formula
    `kink` is all but zero, rounding decides on the derivative: no gradient is given there."""
    kind = kind or x.dtype
    leaves = [v.detach().requires_grad_() for v in (x, *parameters)]
    wide = [v.detach().double().requires_grad_() for v in leaves]
    result, truth = function(*leaves), formula(*wide)
    assert result.dtype == kind
    assert result.shape == truth.shape
    assert relative_error(result, truth) < BOUNDS[kind]
    gradient = torch.randn_like(result)
    if kink is not None:
        gradient = gradient.masked_fill(kink(*(v.detach() for v in wide)).abs() < 0.05, 0)
    found = torch.autograd.grad(result, leaves, gradient)
    expected = torch.autograd.grad(truth, wide, gradient.double())
    for index, (leaf, f, e) in enumerate(zip(leaves, found, expected, strict=True)):
        assert f.dtype == leaf.dtype
        assert f.shape == leaf.shape
        assert relative_error(f, e) < BOUNDS[kind], index


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_without_kernels(dtype):
    check(mlp, mlp_formula, torch.randn(2, 3, 5, dtype=dtype), make_layers(5, 12, 7, dtype))
    check(linear, linear_formula, torch.randn(2, 3, 5, dtype=dtype), make_layer(5, 7, dtype))
    check(linear_relu, relu_formula, torch.randn(2, 3, 5, dtype=dtype), make_layer(5, 7, dtype), kink=linear_formula)


def test_training_and_evaluation_give_the_same():
    layer, x = MLP(6, 4), torch.randn(2, 3, 4, 6)
    assert torch.equal(layer.train()(x), layer.eval()(x))
