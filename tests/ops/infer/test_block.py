"""The halves of a block against their definition in float64; their kernels through Triton's interpreter, in a process
of their own. On a GPU they run in `test_block_gpu.py`."""

import torch
from torch.nn import functional

from crispseg.ops.infer.block import MLP, Start, conv_norm, conv_norm_mlp, conv_norm_project
from crispseg.ops.maps.depthwise import packed
from tests.conftest import relative_error
from tests.ops.maps.test_depthwise import make_map, make_weights, shifted_products
from tests.ops.maps.test_maps import normalised


def make_start(channels, dtype=torch.float64, device="cpu"):
    weight, bias = make_weights(channels, dtype, device)
    gamma, beta = torch.randn(2, channels, device=device).to(dtype)
    return Start(packed(weight), bias, gamma, beta, 1e-5)


def make_product(channels, out, dtype=torch.float64, device="cpu"):
    """A matrix (channels, out) with its columns side by side, of a size that keeps the scale of what it multiplies."""
    return (torch.randn(out, channels, device=device) / channels**0.5).to(dtype).t()


def make_mlp(channels, hidden, dtype=torch.float64, device="cpu"):
    """As a block packs them: the second matrix is part of a larger one."""
    biases = torch.randn(channels + hidden, device=device).to(dtype).split([hidden, channels])
    second = make_product(hidden + 8, channels, dtype, device)[:hidden]
    return MLP(make_product(channels, hidden, dtype, device), biases[0], second, biases[1])


def wide(parameters):
    return type(parameters)(*(v.double() if isinstance(v, torch.Tensor) else v for v in parameters))


def begin(x, start):
    """y and its LayerNorm in float64."""
    start = wide(start)
    y = shifted_products(x.double(), start.weight, start.bias, residual=True)
    return y, normalised(y, start.gamma, start.beta, start.eps)


def project_truth(x, start, matrix):
    y, normed = begin(x, start)
    return y, normed @ matrix.double()


def mlp_truth(x, start, mlp):
    y, normed = begin(x, start)
    mlp = wide(mlp)
    return y + functional.gelu(normed @ mlp.fc1 + mlp.fc1_bias) @ mlp.fc2 + mlp.fc2_bias


def check_start(function, x, start, bound):
    check_pair(function(x, start), begin(x, start), x, bound)


def check_project(function, x, start, matrix, bound):
    check_pair(function(x, start, matrix), project_truth(x, start, matrix), x, bound)


def check_pair(results, truths, x, bound):
    for found, expected in zip(results, truths, strict=True):
        assert found.dtype == x.dtype
        assert found.shape == expected.shape
        assert relative_error(found, expected) < bound


def check_mlp(function, x, start, mlp, bound):
    before = x.clone()
    found, truth = function(x, start, mlp), mlp_truth(x, start, mlp)
    assert found.dtype == x.dtype
    assert found.shape == x.shape
    assert torch.equal(x, before)
    assert relative_error(found, truth) < bound


def test_formula_of_the_start():
    check_start(conv_norm, make_map((5, 4, 6), torch.float64), make_start(6), 1e-12)


def test_formula_of_the_projection():
    check_project(conv_norm_project, make_map((5, 4, 6), torch.float64), make_start(6), make_product(6, 10), 1e-12)


def test_formula_of_the_mlp():
    check_mlp(conv_norm_mlp, make_map((3, 7, 6), torch.float64), make_start(6), make_mlp(6, 24), 1e-12)
