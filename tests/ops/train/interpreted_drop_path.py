"""The kernels of dropped branches through Triton's interpreter; run by `test_interpreted.py`."""

import pytest
import torch

from crispseg.ops.train import drop_path_kernels
from tests.ops.train import test_drop_path as of_branches

HALF = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (5, 3, 7), (4, 70, 33), (3, 2, 4, 512)], ids=str)
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_branches(dtype, shape, rate):
    of_branches.check(drop_path_kernels._add_kept, shape, dtype, rate)


def test_a_gradient_in_another_layout():
    x, branch = (torch.randn(3, 4, 5, 6).requires_grad_() for _ in range(2))
    found = drop_path_kernels._add_kept(x, branch, torch.tensor([0.1, 0.6, 0.9]), 0.5)
    gradient = torch.randn(3, 6, 4, 5).permute(0, 2, 3, 1)
    of_x, of_branch = torch.autograd.grad(found, [x, branch], gradient)
    assert torch.equal(of_x, gradient)
    torch.testing.assert_close(of_branch, gradient * torch.tensor([0.0, 2.0, 2.0]).view(3, 1, 1, 1))


def test_the_operator_is_registered_well():
    x, branch = (torch.randn(4, 6, requires_grad=True) for _ in range(2))
    torch.library.opcheck(drop_path_kernels._add_kept, (x, branch, torch.rand(4), 0.5))


def test_compiles_to_one_graph():
    compiled = torch.compile(drop_path_kernels._add_kept, fullgraph=True, backend="aot_eager")
    of_branches.check(compiled, (3, 4, 5), torch.float16, 0.5)
