"""The block's kernels on a CUDA device, against their definition in float64."""

import pytest
import torch

from crispseg.ops.infer.block import conv_norm, conv_norm_mlp, conv_norm_project
from tests.ops.infer.test_block import (
    check_mlp,
    check_project,
    check_start,
    make_map,
    make_mlp,
    make_product,
    make_start,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HALVES = [torch.bfloat16, torch.float16]
SIZES = [(16, 16), (130, 127), (1, 1), (1, 301), (97, 1), (5, 7)]
BOUND = 1e-2


@pytest.fixture(autouse=True)
def _kernels_without_gradients(monkeypatch):
    monkeypatch.delenv("CRISPSEG_OPS_BACKEND", raising=False)
    with torch.no_grad():
        yield


def make(size, channels, dtype, scale=1.0, batch=2):
    x = make_map((*size, channels), dtype, batch=batch, scale=scale, device="cuda")
    return x, make_start(channels, dtype, "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("channels", [32, 64, 96, 128, 256, 512, 768])
@pytest.mark.parametrize("size", [(16, 16), (33, 47), (1, 1)], ids=str)
def test_start(size, channels, scale, dtype):
    x, start = make(size, channels, dtype, scale)
    assert conv_norm.takes(x, start)
    check_start(conv_norm, x, start, 1e-5 if dtype == torch.float32 else BOUND)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("channels", "out"), [(32, 200), (64, 392), (64, 24)])
def test_projection(size, channels, out, dtype):
    """Of few pixels by torch's operations."""
    x, start = make(size, channels, dtype)
    matrix = make_product(channels, out, dtype, "cuda")
    assert conv_norm_project.takes(x, start, matrix) == (size == (130, 127))
    check_project(conv_norm_project, x, start, matrix, BOUND)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("channels", [32, 64, 128])
def test_mlp(size, channels, dtype):
    """Those of 128 channels and few pixels by torch's operations."""
    x, start = make(size, channels, dtype)
    mlp = make_mlp(channels, 4 * channels, dtype, "cuda")
    assert conv_norm_mlp.takes(x, start, mlp) == (channels < 128 or size == (130, 127))
    check_mlp(conv_norm_mlp, x, start, mlp, BOUND)


@pytest.mark.parametrize("channels", [32, 64, 128])
def test_many_pixels_and_large_values(channels):
    """In float16 values of 1e3 leave no room for sums."""
    x, start = make((131, 130), channels, torch.bfloat16, 1e3, batch=3)
    assert conv_norm_project.takes(x, start) == (channels < 128)
    check_project(conv_norm_project, x, start, make_product(channels, 392, torch.bfloat16, "cuda"), BOUND)
    mlp = make_mlp(channels, 4 * channels, torch.bfloat16, "cuda")
    assert conv_norm_mlp.takes(x, start, mlp)
    check_mlp(conv_norm_mlp, x, start, mlp, BOUND)


def test_units_far_from_zero():
    """GELU of large numbers is these, or zero."""
    x, start = make((20, 19), 64, torch.bfloat16)
    mlp = make_mlp(64, 256, torch.bfloat16, "cuda")
    check_mlp(conv_norm_mlp, x, start, mlp._replace(fc1=(1e3 * mlp.fc1.t()).t()), BOUND)


def test_what_the_kernels_leave_to_torch():
    assert "numbers" in conv_norm.why_not(*make((64, 64), 128, torch.bfloat16, batch=16))
    x, start = make((4, 4), 64, torch.float32)
    assert conv_norm_project.why_not(x, start) == "torch.float32"
    assert conv_norm_mlp.why_not(x, start, make_mlp(64, 256, torch.float32, "cuda")) == "torch.float32"
    x, start = make((4, 4), 64, torch.bfloat16)
    assert not conv_norm_project.takes(*make((4, 4), 96, torch.bfloat16))
    assert not conv_norm_mlp.takes(x, start, make_mlp(64, 100, torch.bfloat16, "cuda"))
