"""Compares a backend's results and gradients with the float64 reference; shared by the interpreter's and GPU tests."""

import torch

from crispseg.ops import Rule, ncssd
from tests.conftest import relative_error
from tests.ops.nc_ssd.test_ncssd import BOUNDS, make_gates

NAMES = ("v", "b", "c", "rho", "d", "residual", "omega", "s", "t")
PARAMETER_BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


def check(function, inputs, values, rule, steps=(True, True, True), device="cpu", **options):
    """`function` takes inputs, gates, rule and the options. The gates' gradients are sums over all tokens that nearly
    cancel: each is measured by the largest of all parameters'."""
    dtype = inputs[0].dtype
    wide = [x.detach().to(device).double().requires_grad_() for x in (*inputs, *values)]
    truth = ncssd(*wide[:5], make_gates(wide[5:], steps), rule, backend="reference")
    weight = torch.randn_like(truth) / truth.detach().norm()
    expected = torch.autograd.grad((truth * weight).sum(), wide, allow_unused=True)

    leaves = [x.detach().to(device).requires_grad_() for x in (*inputs, *values)]
    result = function(*leaves[:5], make_gates(leaves[5:], steps), rule, **options)
    assert result.dtype == torch.float32
    assert relative_error(result.detach(), truth.detach()) < BOUNDS[dtype]
    found = torch.autograd.grad((result * weight.float()).sum(), leaves, allow_unused=True)
    largest = max(x.norm().item() for x in expected[4:] if x is not None)
    for name, f, e in zip(NAMES, found, expected, strict=True):
        assert (f is None) == (e is None), name
        if f is None or (f.dtype == torch.float16 and e.abs().max() < 1e-4):
            continue  # below float16's range: mixed-precision training scales its loss for this reason
        difference = (f.double() - e).norm().item()
        if name in NAMES[:4]:
            # with one token the keys and queries have no gradient: what is left is rounding
            assert difference <= BOUNDS[dtype] * e.norm().item() or difference < 1e-6 * max(largest, 1), name
        else:
            assert difference <= PARAMETER_BOUNDS[dtype] * max(e.norm().item(), largest), name


def check_gates(function, inputs, values, bound=1e-3, device="cpu"):
    """The gradients of omega, s and t each by itself, however little is left of its sum over all tokens."""
    wide = [x.detach().to(device).double().requires_grad_() for x in (*inputs, *values)]
    truth = ncssd(*wide[:5], make_gates(wide[5:]), Rule(), backend="reference")
    weight = torch.randn_like(truth)
    expected = torch.autograd.grad((truth * weight).sum(), wide[-3:])
    leaves = [x.detach().to(device).requires_grad_() for x in (*inputs, *values)]
    result = function(*leaves[:5], make_gates(leaves[5:]), Rule())
    found = torch.autograd.grad((result * weight.float()).sum(), leaves[-3:])
    for name, f, e in zip(NAMES[-3:], found, expected, strict=True):
        assert relative_error(f, e) < bound, name
