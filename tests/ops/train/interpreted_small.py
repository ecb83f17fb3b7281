"""The kernels of projections, gates and dropped branches through Triton's interpreter; run by
`test_interpreted.py`."""

import itertools

import pytest
import torch

from crispseg.ops.train import drop_path, gates, projection
from crispseg.ops.train.weight_copies import _copies, copies
from tests.ops.train import test_drop_path as of_branches
from tests.ops.train import test_gates as of_gates
from tests.ops.train import test_mlp as of_layers
from tests.ops.train import test_projection as of_projections

HALF = (torch.bfloat16, torch.float16)


def project(x, weight, spare=0):
    return projection._project(x, weight, *copies(x.dtype, weight, spare=spare))


def widened(x, weight):
    return project(x, weight, of_projections.SPARE)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("spare", [0, 5])
def test_copies(dtype, spare):
    """Exactly what torch makes of them, in one launch, whatever their sizes and precision."""
    for count, kept in itertools.product(range(1, 5), {torch.float32, dtype}):
        given = [torch.randn(shape).to(kept) for shape in ((5, 3), (70, 33), (11,), (1, 1))[:count]]
        for found, x in zip(copies(dtype, *given, spare=spare), given, strict=True):
            assert found.dtype == dtype
            assert torch.equal(found, torch.cat([x, x.new_zeros(spare, *x.shape[1:])]).to(dtype))


def test_copies_of_a_transposed_weight():
    x = torch.randn(6, 9).t()
    (found,) = copies(torch.float32, x, spare=1)
    assert found.is_contiguous()
    assert torch.equal(found[:9], x)
    assert not found[9:].any()


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("sizes", [(1, 3, 5), (33, 16, 50)], ids=str)
def test_projections(dtype, sizes):
    rows, width, out = sizes
    x, weight = torch.randn(2, rows, width).to(dtype), of_projections.make_weight(out, width)
    of_layers.check(project, of_projections.formula, x, weight)
    of_layers.check(widened, of_projections.widened_formula, x, weight)
    of_layers.check(widened, of_projections.widened_formula, x.transpose(0, 1), weight)


@pytest.mark.parametrize("sizes", [(1, 1), (3, 32), (24, 5), (16, 64)], ids=str)
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0])
def test_gates(sizes, scale):
    of_gates.check(gates._gates, of_gates.make_parameters(*sizes, scale))


def test_gates_near_where_their_two_formulas_meet_and_far_out():
    x = torch.cat([torch.linspace(-1, 1, 2001), torch.tensor([-80.0, -30.0, 30.0, 80.0])])
    found = gates._gates(x, x, x, x)[2]
    assert ((found - x.double().tanh()) / x.double().tanh().where(x != 0, 1)).abs().max() < 5e-7
    assert found.abs().max() <= 1


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (5, 3, 7), (4, 70, 33), (3, 2, 4, 512)], ids=str)
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_branches(dtype, shape, rate):
    of_branches.check(drop_path._add_kept, shape, dtype, rate)


def test_a_gradient_in_another_layout():
    x, branch = (torch.randn(3, 4, 5, 6).requires_grad_() for _ in range(2))
    found = drop_path._add_kept(x, branch, torch.tensor([0.1, 0.6, 0.9]), 0.5)
    gradient = torch.randn(3, 6, 4, 5).permute(0, 2, 3, 1)
    of_x, of_branch = torch.autograd.grad(found, [x, branch], gradient)
    assert torch.equal(of_x, gradient)
    torch.testing.assert_close(of_branch, gradient * torch.tensor([0.0, 2.0, 2.0]).view(3, 1, 1, 1))


def test_the_operators_are_registered_well():
    x, weight = torch.randn(4, 6, requires_grad=True), torch.randn(5, 6, requires_grad=True)
    torch.library.opcheck(_copies, ([weight.detach(), torch.randn(3)], torch.bfloat16, 2))
    torch.library.opcheck(projection._project, (x, weight, *copies(x.dtype, weight, spare=3)))
    torch.library.opcheck(gates._gates, tuple(v.requires_grad_() for v in of_gates.make_parameters()))
    torch.library.opcheck(drop_path._add_kept, (x, torch.randn(4, 6, requires_grad=True), torch.rand(4), 0.5))


def test_compiles_to_one_graph():
    compiled = torch.compile(widened, fullgraph=True, backend="aot_eager")
    of_layers.check(compiled, of_projections.widened_formula, torch.randn(2, 3, 4), of_projections.make_weight(7, 4))
    of_gates.check(torch.compile(gates._gates, fullgraph=True, backend="aot_eager"), of_gates.make_parameters())
    compiled = torch.compile(drop_path._add_kept, fullgraph=True, backend="aot_eager")
    of_branches.check(compiled, (3, 4, 5), torch.float16, 0.5)
