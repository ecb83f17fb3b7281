"""The operator and a model on a CUDA device, against the float64 reference."""

import functools

import pytest
import torch

import crispseg
from crispseg.ops import BACKENDS, Gates, Rule, ncssd
from crispseg.ops.infer.gated_mixer import gated_mixer
from crispseg.ops.nc_ssd import formula as torch_path
from tests.conftest import relative_error
from tests.ops.infer.test_gated_mixer import in_float64, make_mixer_inputs, make_mixing
from tests.ops.nc_ssd.agreement import PARAMETER_BOUNDS, check, check_gates
from tests.ops.nc_ssd.test_ncssd import BOUNDS, RULES, STEPS, make_gates, make_inputs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


needs_triton = pytest.mark.skipif("triton" not in BACKENDS, reason="needs triton")
FOLDING = [r for r in RULES if r.residual_readout == "row"]
# batch, tokens, heads, P, N: the stages of CRISP-tiny, -micro, -nano and -base; and odd ones
SIZES = [
    (2, 4096, 4, 64, 64),
    (2, 1024, 8, 64, 64),
    (3, 256, 16, 64, 64),
    (2, 1000, 2, 48, 48),
    (1, 2000, 1, 64, 32),
    (1, 300, 24, 64, 64),
    (5, 17, 3, 5, 7),
    (1, 33, 1, 128, 128),
]


@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("length", [1, 997])
@pytest.mark.parametrize("rule", FOLDING, ids=str)
def test_forward_and_gradients(backend, dtype, scale, length, rule):
    check(ncssd, *make_inputs(8, length, 4, 32, 16, dtype, scale), rule, device="cuda", backend=backend)


@needs_triton
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("length", [16384, 262144])
def test_long_images(dtype, length):
    check(ncssd, *make_inputs(1, length, 2, 64, 64, dtype), Rule(), device="cuda", backend="triton")


@needs_triton
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 1e-3), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("sizes", [(1, 256, 2, 64, 64), (4, 16384, 2, 64, 64), SIZES[2]], ids=str)
def test_gates_by_themselves(sizes, dtype, bound):
    check_gates(functools.partial(ncssd, backend="triton"), *make_inputs(*sizes, dtype), bound, device="cuda")


@needs_triton
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes_of_the_networks(dtype, sizes):
    check(ncssd, *make_inputs(*sizes, dtype), Rule(), device="cuda", backend="triton")


@needs_triton
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("sizes", [SIZES[0], SIZES[2], SIZES[6]], ids=str)
def test_backward_with_a_gradient_in_half_precision(sizes, dtype):
    from crispseg.ops.nc_ssd import backward as ncssd_backward
    from crispseg.ops.nc_ssd import operator as triton_path

    inputs, values = ([x.cuda() for x in group] for group in make_inputs(*sizes, dtype))
    gates = make_gates(values)
    grad = torch.randn_like(inputs[0], dtype=torch.bfloat16)
    leaves = [x.double().requires_grad_() for x in (*inputs, *values)]
    result = ncssd(*leaves[:5], make_gates(leaves[5:]), backend="reference")
    expected = torch.autograd.grad(result, leaves, grad.double())
    sums = triton_path._forward(*inputs, *gates, True, False)[1:]
    problem = ncssd_backward.Problem(*inputs, gates, True, False, *sums)
    found = ncssd_backward.gradients(problem, grad)
    largest = max(x.norm() for x in expected[4:])
    for place, (f, e) in enumerate(zip(found, expected, strict=True)):
        bounds, size = (BOUNDS, e.norm()) if place < 4 else (PARAMETER_BOUNDS, torch.maximum(e.norm(), largest))
        assert (f.double() - e).norm() < bounds[dtype] * size
    out = torch.empty(*inputs[0].shape[:2], inputs[0][0, 0].numel() + 2 * inputs[1].shape[-1], dtype=dtype).cuda()
    again = ncssd_backward.gradients(problem, grad, out)
    assert all(torch.equal(x, y) for x, y in zip(found, again, strict=True))
    assert again[0].data_ptr() == out.data_ptr()


@needs_triton
@pytest.mark.parametrize("steps", STEPS, ids=str)
def test_steps_on_and_off(steps):
    check(ncssd, *make_inputs(2, 600, 2, 64, 64, torch.bfloat16), Rule(), steps, device="cuda", backend="triton")


@needs_triton
def test_triton_is_chosen_where_it_can_be():
    inputs, values = make_inputs(length=50, dtype=torch.float32)
    moved, gates = [x.cuda() for x in inputs], make_gates([x.cuda() for x in values])
    assert torch.equal(ncssd(*moved, gates), ncssd(*moved, gates, backend="triton"))
    unfolded = Rule(residual_readout="unnormalized")
    assert torch.equal(ncssd(*moved, gates, unfolded), ncssd(*moved, gates, unfolded, backend="torch"))
    wide, wide_gates = [x.double() for x in moved], make_gates([x.double().cuda() for x in values])
    assert torch.equal(ncssd(*wide, wide_gates), ncssd(*wide, wide_gates, backend="torch"))


@needs_triton
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_views_and_a_strided_gradient(dtype):
    def function(*inputs_gates_rule, backend):
        *tensors, gates, rule = inputs_gates_rule
        turned = [x.movedim(1, -1).contiguous().movedim(-1, 1) for x in tensors[:4]]
        return ncssd(*turned, tensors[4], gates, rule, backend).movedim(1, -1).contiguous().movedim(-1, 1)

    check(function, *make_inputs(2, 500, 2, 64, 64, dtype), Rule(), device="cuda", backend="triton")


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_with_gradients(dtype):
    inputs, values = make_inputs(2, 700, 2, 64, 64, dtype)
    leaves = [x.cuda().requires_grad_() for x in (*inputs, *values)]

    def function(*tensors):
        return (2 * ncssd(*tensors[:5], Gates(*tensors[5:]), backend="triton")).square().mean()

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True)
    found = torch.autograd.grad(compiled(*leaves), leaves)
    expected = torch.autograd.grad(function(*leaves), leaves)
    for f, e in zip(found, expected, strict=True):
        assert relative_error(f, e) < (1e-5 if dtype == torch.float32 else 1e-2)


@needs_triton
@pytest.mark.parametrize("rule", FOLDING, ids=str)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("sizes", [(2, 997, 2, 64, 64), (1, 256, 16, 64, 64), (1, 1, 4, 48, 48)], ids=str)
def test_gated_mixer(rule, dtype, sizes):
    batch, length, *others = sizes
    tensors, values = make_mixer_inputs(length, batch, *others, dtype, device="cuda")
    truth = in_float64(tensors, values, rule)
    with torch.no_grad():
        result = gated_mixer.by_kernel(*tensors[:3], make_mixing(tensors[3:], make_gates(values), rule))
    assert result.dtype == dtype
    assert relative_error(result, truth) < BOUNDS[dtype]


@needs_triton
def test_a_recorded_graph_replays_on_new_inputs():
    tensors, values = make_mixer_inputs(500, 1, 2, 64, 64, torch.bfloat16, device="cuda")

    def run(xbc):
        return gated_mixer.by_kernel(xbc, *tensors[1:3], make_mixing(tensors[3:], make_gates(values), Rule()))

    place = tensors[0].clone()
    with torch.no_grad():
        run(place)  # compiles the kernels
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = run(place)
        for _ in range(2):
            place.copy_(torch.randn_like(place))
            graph.replay()
            assert torch.equal(kept, run(place))


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
