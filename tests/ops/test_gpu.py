"""The operator and a model on a CUDA device, against the float64 reference on the CPU."""

import pytest
import torch

import crispseg
from crispseg.ops import Gates, Rule, ncssd
from crispseg.ops import torch as torch_path
from tests.conftest import relative_error
from tests.ops.test_ncssd import BOUNDS, RULES, make_gates, make_inputs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("length", [1, 997, 40000])
@pytest.mark.parametrize("rule", [r for r in RULES if r.residual_readout == "row"], ids=str)
def test_forward_and_gradients(dtype, scale, length, rule):
    inputs, values = make_inputs(length=length, dtype=dtype, scale=scale, heads=2, width=32, state=16)
    wide = [x.double().requires_grad_() for x in (*inputs, *values)]
    truth = ncssd(*wide[:5], Gates(*wide[5:]), rule, backend="reference")
    weight = torch.randn_like(truth) / truth.detach().norm()
    truth_grads = torch.autograd.grad((truth * weight).sum(), wide)

    moved = [x.cuda().requires_grad_() for x in (*inputs, *values)]
    result = ncssd(*moved[:5], Gates(*moved[5:]), rule)
    assert relative_error(result.cpu(), truth) < BOUNDS[dtype]
    grads = torch.autograd.grad((result * weight.cuda().float()).sum(), moved)
    for name, found, expected in zip(
        ("v", "b", "c", "rho", "d", "g", "omega", "s", "t"), grads, truth_grads, strict=True
    ):
        if found.dtype == torch.float16 and expected.abs().max() < 1e-4:
            continue  # below float16's range: mixed-precision training scales its loss for this reason
        if (found.cpu().double() - expected).norm() < 1e-6:
            continue  # the mean's gates have no gradient at all with a single token
        assert relative_error(found.cpu(), expected) < max(BOUNDS[dtype], 1e-4), name


def test_chunked_equals_whole():
    inputs, values = make_inputs(length=5000, dtype=torch.float32, heads=2, width=32, state=16)
    moved = [x.cuda() for x in inputs]
    gates = make_gates([x.cuda() for x in values])
    whole = torch_path.ncssd(*moved, gates, Rule())
    assert relative_error(torch_path.ncssd(*moved, gates, Rule(), chunk=512), whole) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_model_in_half_precision(dtype):
    model = crispseg.create_model("crisp_tiny", num_classes=6).eval()
    images = torch.randn(1, 3, 200, 264)
    with torch.no_grad():
        truth = model(images)
        model.cuda()
        with torch.autocast("cuda", dtype=dtype):
            half = model(images.cuda())
        full = model(images.cuda())
    assert relative_error(full.cpu(), truth) < 1e-3
    assert relative_error(half.cpu(), truth) < 0.1


def test_model_compiles_with_inductor():
    model = crispseg.create_model("crisp_nano", num_classes=6).eval().cuda()
    images = torch.randn(1, 3, 256, 256, device="cuda")
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)(images)
        assert relative_error(compiled.cpu(), model(images).cpu()) < 1e-3
