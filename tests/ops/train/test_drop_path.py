"""Branches added or dropped, against float64."""

import pytest
import torch

from crispseg.ops.train.drop_path import add_kept, plain_gradients
from tests.conftest import relative_error

BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def formula(x, branch, drawn, rate):
    kept = (drawn >= rate).view(-1, *[1] * (x.dim() - 1))
    return torch.where(kept, x + branch / (1 - rate), x)


def check(function, shape, dtype, rate, device="cpu"):
    x, branch = (torch.randn(shape, device=device).to(dtype).requires_grad_() for _ in range(2))
    wide = [v.detach().double().requires_grad_() for v in (x, branch)]
    drawn = torch.rand(shape[0], device=device)
    drawn[0] = rate  # kept, only just
    found, truth = function(x, branch, drawn, rate), formula(*wide, drawn, rate)
    assert found.dtype == dtype
    assert found.shape == truth.shape
    gradient = torch.randn_like(found)
    gradients = torch.autograd.grad(found, [x, branch], gradient)
    expected = torch.autograd.grad(truth, wide, gradient.double())
    for f, e in zip((found, *gradients), (truth, *expected), strict=True):
        assert relative_error(f, e) < BOUNDS[dtype]
    assert torch.equal(found[drawn < rate], x[drawn < rate])


@pytest.mark.parametrize("rate", [0.125, 0.5, 0.75])
def test_without_kernels(rate):
    check(add_kept, (7, 3, 4, 5), torch.float32, rate)


def test_gradients_where_their_kernel_does_not_run():
    drawn, g = torch.rand(5), torch.randn(5, 2, 3)
    x, branch = (torch.zeros(5, 2, 3, requires_grad=True) for _ in range(2))
    truth = torch.autograd.grad(formula(x, branch, drawn, 0.4), [x, branch], g)
    for found, expected in zip(plain_gradients(g, drawn, 0.4), truth, strict=True):
        torch.testing.assert_close(found, expected)
