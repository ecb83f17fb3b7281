"""Projections without bias against the formula in float64. The kernels' tests are in `interpreted_small.py` and
`test_small_gpu.py`."""

import pytest
import torch

from crispseg.ops.train.projection import project
from tests.ops.train.test_mlp import check

SPARE = 3


def formula(x, weight):
    return x @ weight.t()


def widened_formula(x, weight):
    return torch.cat([formula(x, weight), x.new_zeros(*x.shape[:-1], SPARE)], dim=-1)


def make_weight(out, width, dtype=torch.float32, device="cpu"):
    return ((torch.randn(out, width, device=device) / width**0.5).to(dtype),)


def widened(x, weight):
    return project(x, weight, SPARE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_without_kernels(dtype):
    x = torch.randn(2, 3, 5, dtype=dtype)
    check(project, formula, x, make_weight(7, 5, dtype))
    check(widened, widened_formula, x, make_weight(7, 5, dtype))
