"""The kernels of linear layers, the MLP and BatchNorm through Triton's interpreter; run by `test_interpreted.py`."""

import pytest
import torch

from crispseg.ops.common import column_sums
from crispseg.ops.train import batch_norm_kernels as norms
from crispseg.ops.train import mlp_kernels as layers
from tests.conftest import relative_error
from tests.ops.train import test_batch_norm as of_norms
from tests.ops.train import test_mlp as of_layers
from tests.ops.train.test_batch_norm import by_operator, make_map, make_norm
from tests.ops.train.test_mlp import linear_formula, make_layer, make_layers, mlp_formula, relu_formula

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def mlp(x, weight1, bias1, weight2, bias2):
    parameters = weight1, bias1, weight2, bias2
    return layers._mlp(x, *parameters, *layers.rounded_copies(x.dtype, weight1, weight2, bias2))[0]


def linear(x, weight, bias, relu=False):
    return layers._linear(x, weight, bias, *layers.rounded_copies(x.dtype, weight, bias), relu)


def linear_relu(x, weight, bias):
    return linear(x, weight, bias, relu=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_mlp_in_all_precisions(dtype, scale):
    of_layers.check(mlp, mlp_formula, (scale * torch.randn(3, 7, 16)).to(dtype), make_layers(16, 40, 16))


@pytest.mark.parametrize("sizes", [(1, 3, 5, 2), (33, 8, 130, 6), (150, 4, 8, 130)], ids=str)
def test_odd_sizes(sizes):
    rows, width, hidden, out = sizes
    of_layers.check(mlp, mlp_formula, torch.randn(rows, width), make_layers(width, hidden, out))
    of_layers.check(linear, linear_formula, torch.randn(rows, width), make_layer(width, out))
    of_layers.check(linear_relu, relu_formula, torch.randn(rows, width), make_layer(width, out), kink=linear_formula)


def test_a_transposed_map_and_half_precision_parameters():
    x = torch.randn(2, 8, 5).to(torch.bfloat16).transpose(1, 2)
    of_layers.check(mlp, mlp_formula, x, make_layers(8, 16, 8, torch.bfloat16))
    of_layers.check(linear, linear_formula, x, make_layer(8, 6, torch.bfloat16))


def test_gelu_keeps_the_digits_of_its_tails():
    h = torch.linspace(-8, 8, 4001)[:, None].contiguous()
    truth = h.double() * torch.special.ndtr(h.double())
    found = layers.gelu(h, torch.zeros(1))
    assert (found - truth).abs().max() < 1e-6
    near = (h.abs() < 4) & (h != 0)
    assert ((found - truth) / truth)[near].abs().max() < 2**-8  # what bfloat16 would round away


@pytest.mark.parametrize("rows", [1, 31, 32, 1000])
def test_column_sums_do_not_depend_on_how_rows_are_cut(rows, monkeypatch):
    x = torch.randn(rows, 5)
    for busy in (8, 32, 1024):
        monkeypatch.setattr(column_sums, "_BUSY", busy)
        assert relative_error(column_sums.column_sums(x, torch.float32), x.double().sum(0)) < 1e-5


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_batch_norm_in_all_precisions(relu, dtype, scale):
    of_norms.check(by_operator, make_norm(12), make_map((2, 12, 5, 7), dtype, scale), relu)


@pytest.mark.parametrize("shape", [(7, 1, 1, 1), (1, 3, 1, 9), (3, 70, 2, 2), (1, 2, 40, 67)], ids=str)
def test_batch_norm_of_odd_maps(shape, monkeypatch):
    """Not of two values: they become 1 and -1 whatever they are, and a gradient that is all rounding is left."""
    for busy in (8, 256):
        monkeypatch.setattr(column_sums, "_BUSY", busy)
        of_norms.check(by_operator, make_norm(shape[1]), make_map(shape), relu=False)


def test_statistics_keep_digits_far_from_zero():
    x = make_map((2, 3, 30, 41), offset=1e3)
    x[0, :, 0, 0] = 0  # a first pixel that says nothing about the rest
    rows = x.permute(0, 2, 3, 1).reshape(-1, 3)
    mean, scale = norms._statistics_(x, torch.zeros(3), torch.ones(3), torch.tensor(0), 0.1, 1e-5)
    assert relative_error(mean, rows.double().mean(0)) < 1e-6
    assert relative_error(scale, (rows.double().var(0, unbiased=False) + 1e-5).rsqrt()) < 1e-3


def test_batch_norm_of_other_memory_layouts():
    """The result has channels side by side whatever x has."""
    of_norms.check(by_operator, make_norm(4), torch.randn(2, 4, 3, 5), relu=True)


def test_the_operators_are_registered_well():
    x, parameters = torch.randn(6, 4, requires_grad=True), [v.requires_grad_() for v in make_layers(4, 8, 4)]
    torch.library.opcheck(
        layers._mlp, (x, *parameters, *layers.rounded_copies(x.dtype, *parameters[0::2], parameters[3]))
    )
    torch.library.opcheck(layers._linear, (x, *parameters[:2], *layers.rounded_copies(x.dtype, *parameters[:2]), True))
    x, norm = make_map((2, 4, 3, 3)), make_norm(4)
    running = norm.running_mean, norm.running_var, norm.num_batches_tracked
    torch.library.opcheck(norms._statistics_, (x, *running, 0.1, 1e-5))
    mean, scale = norms._statistics_(x, *running, 0.1, 1e-5)
    torch.library.opcheck(norms._forward, (x.requires_grad_(), norm.weight, norm.bias, mean, scale, True))


def test_compiles_to_one_graph():
    compiled = torch.compile(by_operator, fullgraph=True, backend="aot_eager")
    of_norms.check(compiled, make_norm(6), make_map((2, 6, 3, 4)), relu=True)
    compiled = torch.compile(mlp, fullgraph=True, backend="aot_eager")
    of_layers.check(compiled, mlp_formula, torch.randn(3, 5, 4), make_layers(4, 8, 4))
