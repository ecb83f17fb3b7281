"""BatchNorm with ReLU against its definition in float64, and against torch's own for the running statistics.

The kernels run through the interpreter of Triton (see `test_mlp.py`), and on a GPU in `test_layers_gpu.py`."""

import copy

import pytest
import torch
from torch import nn

from crispseg.models.layers import BatchNorm2d, ConvNorm
from crispseg.ops.train.batch_norm import batch_norm
from tests.conftest import relative_error
from tests.ops.train.test_mlp import BOUNDS

EPS, MOMENTUM = 1e-5, 0.1


def definition(x, weight, bias, relu):
    """Mean and variance of each channel over batch and pixels, in the precision of x."""
    centred = x - x.mean((0, 2, 3), keepdim=True)
    variance = centred.square().mean((0, 2, 3), keepdim=True)
    y = centred / (variance + EPS).sqrt() * weight[:, None, None] + bias[:, None, None]
    return y.clamp(min=0) if relu else y


def make_map(shape, dtype=torch.float32, scale=1.0, offset=0.0, device="cpu"):
    """A map (B, C, H, W), channels side by side in memory."""
    batch, channels, height, width = shape
    x = scale * (torch.randn(batch, height, width, channels, device=device) + offset)
    return x.to(dtype).permute(0, 3, 1, 2)


def make_norm(channels, device="cpu"):
    """A layer whose parameters and running statistics are not those it begins with."""
    norm = BatchNorm2d(channels, eps=EPS, momentum=MOMENTUM).to(device)
    for values in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(values)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return norm


def by_operator(norm, x, relu):
    running = norm.running_mean, norm.running_var, norm.num_batches_tracked
    return batch_norm.by_kernel(x, norm.weight, norm.bias, *running, norm.momentum, norm.eps, relu)


def by_layer(norm, x, relu):
    return norm(x, relu=relu)


def check(function, norm, x, relu):
    """Result, gradients and running statistics, each within the bound of x's dtype."""
    bound = BOUNDS[x.dtype]
    torchs = nn.BatchNorm2d(norm.num_features, norm.eps, norm.momentum).double().to(x.device)
    torchs.load_state_dict(norm.state_dict())
    x = x.detach().requires_grad_()
    wide = [v.detach().double().requires_grad_() for v in (x, norm.weight, norm.bias)]
    result, truth = function(norm, x, relu), definition(*wide, relu)
    assert result.dtype == x.dtype
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert relative_error(result, truth) < bound
    gradient = torch.randn_like(result)
    if relu:  # where its argument is all but zero, rounding decides on the derivative
        gradient = gradient.masked_fill(definition(*(v.detach() for v in wide), False).abs() < 1e-4, 0)
    found = torch.autograd.grad(result, (x, norm.weight, norm.bias), gradient)
    expected = torch.autograd.grad(truth, wide, gradient.double())
    for name, f, e in zip(("x", "weight", "bias"), found, expected, strict=True):
        assert f.shape == e.shape
        assert relative_error(f, e) < bound, name
    torch.nn.functional.relu_(function(copy.deepcopy(norm), x, relu))  # others' layers change it in place
    torchs(wide[0].detach())
    assert relative_error(norm.running_mean, torchs.running_mean) < 1e-5
    assert relative_error(norm.running_var, torchs.running_var) < 1e-5
    assert norm.num_batches_tracked == torchs.num_batches_tracked == 1


@pytest.mark.parametrize("relu", [False, True])
def test_layer_without_kernels(relu):
    check(by_layer, make_norm(5), make_map((2, 5, 4, 3)), relu)


def test_kernels_are_for_half_precision_maps_on_a_gpu():
    assert not batch_norm.takes(make_map((2, 4, 3, 3)))
    assert not batch_norm.takes(make_map((2, 4, 3, 3), torch.bfloat16))


@pytest.mark.parametrize("act", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_convolution_norm_and_relu(act, training):
    layer = ConvNorm(3, 5, 3, act=act).train(training)
    layer.norm = make_norm(5).train(training)
    x, norm = torch.randn(2, 3, 6, 7), copy.deepcopy(layer.norm)
    y = nn.BatchNorm2d.forward(norm, layer.conv(x))
    assert torch.equal(layer(x), torch.relu(y) if act else y)
    assert norm.num_batches_tracked == int(training)


@pytest.mark.parametrize("act", [False, True])
def test_another_norm_in_its_place(act):
    """As when processes share their statistics, or a BatchNorm is folded away."""
    layer, x = ConvNorm(3, 5, 1, act=act), torch.randn(2, 3, 4, 4)
    for norm in (nn.BatchNorm2d(5), nn.Identity()):
        layer.norm = copy.deepcopy(norm)
        y = norm(layer.conv(x))
        assert torch.equal(layer(x), torch.relu(y) if act else y)


@pytest.mark.parametrize("relu", [False, True])
def test_one_value_per_channel_uses_the_running_statistics(relu):
    norm, x = make_norm(4), torch.randn(1, 4, 1, 1)
    y = norm(x, relu=relu)
    expected = copy.deepcopy(norm).eval()(x)
    torch.testing.assert_close(y, torch.relu(expected) if relu else expected)
    assert norm.num_batches_tracked == 0
