"""The block's kernels through Triton's interpreter; run by `test_interpreted.py`."""

import pytest
import torch

from crispseg.fused import backbone
from crispseg.models.vssd import VARIANTS, Block
from crispseg.ops import dispatch
from crispseg.ops.infer import block_kernels as kernels
from tests.conftest import relative_error
from tests.ops.infer.test_block import (
    check_mlp,
    check_project,
    check_start,
    make_map,
    make_mlp,
    make_product,
    make_start,
)

# The kernels' GELU is the tanh form. bfloat16 products are exact in the interpreter, what enters them is rounded.
BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 1e-2, torch.float16: 1e-2}
DTYPES = list(BOUNDS)
SIZES = [(1, 1), (9, 17), (3, 40)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(1, 1, 1), (3, 5, 16), (4, 9, 24)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_start(size, dtype, scale):
    x, start = make_map(size, dtype, scale=scale, margin=2), make_start(size[2], dtype)
    check_start(kernels.conv_norm, x, start, 1e-5 if dtype == torch.float32 else BOUNDS[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_projection(size, dtype, scale):
    x, start = make_map((*size, 32), dtype, scale=scale), make_start(32, dtype)
    check_project(kernels.conv_norm_project, x, start, make_product(32, 72, dtype), BOUNDS[dtype])


@pytest.mark.parametrize("out", [192, 200])
def test_projection_a_chunk_at_a_time(out):
    """With 200 columns the last chunk is not full, with 192 every one is."""
    x, start, tiles = make_map((5, 6, 32)), make_start(32, torch.float32), kernels.BlockTiles(4, 4, 32, 4)
    matrix = make_product(32, out, torch.float32)
    check_project(lambda *args: kernels.conv_norm_project(*args, tiles), x, start, matrix, BOUNDS[torch.float32])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_mlp(size, dtype, scale):
    x, start = make_map((*size, 32), dtype, scale=scale), make_start(32, dtype)
    check_mlp(kernels.conv_norm_mlp, x, start, make_mlp(32, 128, dtype), BOUNDS[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_thread_may_load_its_weights(dtype):
    tiles = kernels.BlockTiles(2, 8, 16, 2)
    x, start = make_map((5, 9, 32), dtype), make_start(32, dtype)
    check_mlp(lambda *args: kernels.conv_norm_mlp(*args, tiles), x, start, make_mlp(32, 64, dtype), BOUNDS[dtype])


@pytest.mark.parametrize("whole", [True, False])
def test_a_block_by_each_way(monkeypatch, whole):
    """With the MLP in one kernel or in three, against the float64 block in torch's operations."""
    made = Block(32, 1, "ncssd", 0.0, VARIANTS["vssd_nano"]).double().eval()
    x = torch.randn(1, 5, 6, 32)
    with torch.no_grad():
        truth = made(x.double())
        fused = backbone.FusedBlock(made, torch.float32)
        for operator in dispatch.operators().values():
            monkeypatch.setattr(operator, "dtypes", dispatch.FLOATS)
        with dispatch.through_the_interpreter(), dispatch.off(*([] if whole else ["conv_norm_mlp"])):
            assert relative_error(fused(x), truth) < BOUNDS[torch.float32]
