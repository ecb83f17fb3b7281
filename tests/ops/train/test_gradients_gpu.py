"""Norms and the gated mixer with gradients on a CUDA device, against definitions in float64."""

import pytest
import torch

from crispseg.ops import Rule
from crispseg.ops.maps.normalize import layer_norm
from crispseg.ops.train.gated_mixer import convolve_mix_gate
from tests.conftest import relative_error
from tests.ops.infer.test_gated_mixer import make_mixing
from tests.ops.nc_ssd.interpreted_ncssd import RULES
from tests.ops.nc_ssd.test_ncssd import STEPS, make_gates
from tests.ops.train.test_gradients import check_mixer, check_norm, make_projected

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NORMS = [(2, 16384, 64), (4, 16, 16, 512), (1, 8), (33, 47, 96), (5, 2048), (3, 4000)]
# the map, batch, heads, a head's width, state: crisp_tiny at 512 px, then odd ones
MIXERS = [
    ((128, 128), 2, 2, 64, 64),
    ((16, 16), 2, 16, 64, 64),
    ((25, 40), 1, 3, 40, 48),
    ((7, 11), 3, 1, 20, 5),
    ((1, 300), 1, 2, 32, 32),
]


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    monkeypatch.delenv("CRISPSEG_OPS_BACKEND", raising=False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("shape", NORMS, ids=str)
def test_norm(dtype, scale, shape):
    check_norm(layer_norm, shape, dtype, scale, "cuda")


def test_under_autocast_the_norm_keeps_its_precision():
    x = torch.randn(4, 64, device="cuda", dtype=torch.bfloat16)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert layer_norm(x, torch.ones(64, device="cuda"), torch.zeros(64, device="cuda"), 1e-5).dtype == x.dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", MIXERS, ids=str)
def test_mixer(dtype, sizes):
    check_mixer(convolve_mix_gate, *make_projected(*sizes, dtype=dtype, spare=6, device="cuda"), Rule())


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("steps", STEPS, ids=str)
def test_rules_and_steps(rule, steps):
    check_mixer(convolve_mix_gate, *make_projected((7, 10), 2, device="cuda"), rule, steps)


def test_compiles_to_one_graph_forward_and_backward():
    compiled = torch.compile(lambda *arguments: convolve_mix_gate(*arguments), fullgraph=True)
    check_mixer(compiled, *make_projected((15, 20), 2, 2, 32, 32, torch.bfloat16, device="cuda"), Rule())
    compiled = torch.compile(lambda *arguments: layer_norm(*arguments), fullgraph=True)
    check_norm(compiled, (2, 300, 64), torch.bfloat16, device="cuda")


def test_the_torch_backend_leaves_it_to_the_formula(monkeypatch):
    monkeypatch.setenv("CRISPSEG_OPS_BACKEND", "torch")
    tensors, values = make_projected((4, 5), device="cuda")
    assert not convolve_mix_gate.takes(*tensors[:3], make_mixing(tensors[3:], make_gates(values), Rule()))
    x, weight, bias = torch.randn(5, 64, device="cuda"), *torch.randn(2, 64, device="cuda")
    assert torch.equal(layer_norm(x, weight, bias, 1e-5), torch.nn.functional.layer_norm(x, (64,), weight, bias, 1e-5))


def test_gradients_are_the_same_every_time():
    tensors, values = make_projected((64, 64), 2, 2, 64, 64, torch.bfloat16, device="cuda")
    leaves = [x.detach().requires_grad_() for x in tensors]

    def gradients():
        y = convolve_mix_gate(*leaves[:3], make_mixing(leaves[3:], make_gates(values), Rule()))
        return torch.autograd.grad(y, leaves, torch.ones_like(y))

    for first, second in zip(gradients(), gradients(), strict=True):
        assert relative_error(first, second) == 0
