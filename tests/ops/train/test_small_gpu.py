"""Projections, gates and dropped branches on a CUDA device, against float64 and against torch's own operations."""

import pytest
import torch

from crispseg.models.layers import DropPath
from crispseg.models.vssd import Block, backbone_config
from crispseg.ops.train import drop_path, gates, projection
from crispseg.ops.train.weight_copies import copies
from tests.conftest import relative_error
from tests.ops.train import test_drop_path as of_branches
from tests.ops.train import test_gates as of_gates
from tests.ops.train import test_mlp as of_layers
from tests.ops.train import test_projection as of_projections
from tests.ops.train.test_layers_gpu import forbidden, under_autocast

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HALF = (torch.bfloat16, torch.float16)
# rows, width and outputs: crisp_tiny's first and last projections at batch 4, then odd ones
SIZES = [(65536, 64, 386), (65536, 128, 64), (1024, 512, 2192), (1024, 1024, 512), (1001, 48, 13), (1, 8, 3)]


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    monkeypatch.delenv("CRISPSEG_OPS_BACKEND", raising=False)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("spare", [0, 6])
def test_copies(dtype, half, spare):
    kept = dtype if half else torch.float32
    given = [torch.randn(shape, device="cuda").to(kept) for shape in ((386, 64), (2048, 512), (77,), (1, 1))]
    for count in range(1, 5):
        for found, x in zip(copies(dtype, *given[:count], spare=spare), given, strict=False):
            assert torch.equal(found, torch.cat([x, x.new_zeros(spare, *x.shape[1:])]).to(dtype))


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_projections_under_autocast(monkeypatch, dtype, sizes):
    monkeypatch.setattr(projection.functional, "linear", forbidden)
    rows, width, out = sizes
    weight = of_projections.make_weight(out, width, device="cuda")
    for kind in (dtype, torch.float32):
        x = torch.randn(1, rows, width, device="cuda").to(kind)
        of_layers.check(under_autocast(projection.project, dtype), of_projections.formula, x, weight, dtype)
        widened = under_autocast(of_projections.widened, dtype)
        of_layers.check(widened, of_projections.widened_formula, x, weight, dtype)


@pytest.mark.parametrize("sizes", [(2, 64), (16, 64), (24, 32), (3, 500)], ids=str)
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0])
def test_gates(monkeypatch, sizes, scale):
    monkeypatch.setattr(gates.torch, "tanh", forbidden)
    parameters = of_gates.make_parameters(*sizes, scale, "cuda")
    monkeypatch.setattr(of_gates, "formula", lambda a, *rest: (1e-4 + a, *(x.tanh() for x in rest)))
    of_gates.check(gates.gates, parameters)


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
