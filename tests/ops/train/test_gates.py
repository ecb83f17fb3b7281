"""DCO's gates against float64."""

import torch

from crispseg.ops.train.gates import gates
from tests.conftest import relative_error


def formula(lambda_, omega, s, t):
    return 1e-4 + lambda_, torch.tanh(omega), torch.tanh(s), torch.tanh(t)


def make_parameters(heads=3, width=5, scale=1.0, device="cpu"):
    return [scale * torch.randn(size, device=device) for size in (heads, heads, width, width)]


def check(function, parameters, bound=1e-6):
    """Gates and gradients, each of the four by itself: relative to its largest."""
    leaves = [x.requires_grad_() for x in parameters]
    wide = [x.detach().double().requires_grad_() for x in parameters]
    found, truth = function(*leaves), formula(*wide)
    weights = [torch.randn_like(x) for x in found]
    gradients = torch.autograd.grad(found, leaves, weights)
    expected = torch.autograd.grad(truth, wide, [w.double() for w in weights])
    for f, e in zip((*found, *gradients), (*truth, *expected), strict=True):
        assert f.dtype == torch.float32
        assert relative_error(f, e) < bound


def test_without_kernels():
    for scale in (1e-3, 0.1, 1.0):
        check(gates, make_parameters(scale=scale))


def test_some_of_them_only():
    _, omega, s, t = make_parameters()
    found = gates(None, None, s, t)
    assert found.residual is None and found.omega is None
    assert torch.equal(found.s, torch.tanh(s)) and torch.equal(found.t, torch.tanh(t))
    assert gates(None, omega, None, None).use_mean
