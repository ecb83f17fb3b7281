"""DCO's gates and their gradients against float64, on a GPU too."""

import pytest
import torch

from crispseg.models.dco import DCO, DCOConfig
from tests.conftest import relative_error


def formula(lambda_, omega, s, t):
    return 1e-4 + lambda_, torch.tanh(omega), torch.tanh(s), torch.tanh(t)


def make_parameters(heads=3, width=5, scale=1.0, device="cpu"):
    return [scale * torch.randn(size, device=device) for size in (heads, heads, width, width)]


def check(function, parameters, bound=1e-6):
    """Gates and gradients, each of the four by itself: relative to its largest."""
    leaves = [x.requires_grad_() for x in parameters]
    wide = [x.detach().double().requires_grad_() for x in parameters]
    found, truth = tuple(function(*leaves)), formula(*wide)
    weights = [torch.randn_like(x) for x in found]
    gradients = torch.autograd.grad(found, leaves, weights)
    expected = torch.autograd.grad(truth, wide, [w.double() for w in weights])
    for f, e in zip((*found, *gradients), (*truth, *expected), strict=True):
        assert f.dtype == torch.float32
        assert relative_error(f, e) < bound


def gates(lambda_, omega, s, t):
    dco = DCO(len(lambda_), len(s), DCOConfig())
    return torch.func.functional_call(_Gates(dco), {"dco.lambda_": lambda_, "dco.omega": omega, "dco.s": s, "dco.t": t})


class _Gates(torch.nn.Module):
    def __init__(self, dco):
        super().__init__()
        self.dco = dco

    def forward(self):
        return self.dco.gates()


DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0])
def test_gates_and_gradients(scale, device):
    check(gates, make_parameters(scale=scale, device=device), bound=1e-5)


def test_some_of_them_only():
    found = DCO(3, 5, DCOConfig(residual=False, highpass=False)).gates()
    assert found.residual is None and found.omega is None
    assert found.s.shape == found.t.shape == (5,)
    assert DCO(3, 5, DCOConfig(residual=False, rebalance=False)).gates().use_mean
