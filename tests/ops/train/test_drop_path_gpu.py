"""Dropped branches on a CUDA device, against float64 and against torch's own operations."""

import pytest
import torch

from crispseg.models.layers import DropPath
from crispseg.models.vssd import Block, backbone_config
from crispseg.ops.train import drop_path
from tests.conftest import relative_error
from tests.ops.train import test_drop_path as of_branches
from tests.ops.train.test_layers_gpu import forbidden

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HALF = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    monkeypatch.delenv("CRISPSEG_OPS_BACKEND", raising=False)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("shape", [(16, 32, 32, 256), (4, 64, 64, 128), (3, 17, 5, 7), (1, 1)], ids=str)
@pytest.mark.parametrize("rate", [0.0125, 0.2, 0.5])
def test_branches(monkeypatch, dtype, shape, rate):
    monkeypatch.setattr(drop_path.torch, "addcmul", forbidden)
    of_branches.check(drop_path.add_kept, shape, dtype, rate, "cuda")


def test_maps_of_other_layouts_and_precisions_take_torchs_way(monkeypatch):
    monkeypatch.setattr(drop_path, "_add_kept", forbidden)
    layer = DropPath(0.5).cuda().train()
    x = torch.randn(4, 3, 5, 6, device="cuda")
    assert layer.add(x, x).dtype == torch.float32
    assert layer.add(x.bfloat16().permute(0, 2, 3, 1), x.bfloat16().permute(0, 2, 3, 1)).shape == (4, 5, 6, 3)


def test_a_block_with_and_without_kernels(monkeypatch):
    """The same samples are dropped, since the same numbers are drawn."""
    torch.manual_seed(0)
    block = Block(64, 2, "ncssd", 0.4, backbone_config("vssd_tiny")).cuda().train()
    x = torch.randn(8, 13, 16, 64, device="cuda").bfloat16().requires_grad_()
    gradient = torch.randn(8, 13, 16, 64, device="cuda")

    def run():
        torch.manual_seed(1)
        with torch.autocast("cuda", torch.bfloat16):
            y = block(x).float()
        return y, *torch.autograd.grad(y, [x, *block.parameters()], gradient)

    found = run()
    monkeypatch.setenv("CRISPSEG_OPS_BACKEND", "torch")
    for name, f, e in zip(["", "x", *dict(block.named_parameters())], found, run(), strict=True):
        assert f.dtype == e.dtype
        if name in ("", "x") or "proj" in name or "mlp" in name:
            assert relative_error(f, e) < 5e-2, name
