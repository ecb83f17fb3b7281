"""Norms and the gated mixer with gradients, against definitions in float64. The kernels' tests are in
`interpreted_gradients.py` and `test_gradients_gpu.py`."""

import pytest
import torch

from crispseg.ops import Rule
from crispseg.ops.maps.normalize import layer_norm
from crispseg.ops.train.gated_mixer import convolve_mix_gate
from tests.conftest import relative_error
from tests.ops.infer.test_gated_mixer import in_float64, make_mixer_inputs, make_mixing
from tests.ops.maps.test_depthwise import make_weights, shifted_products
from tests.ops.nc_ssd.test_ncssd import make_gates

BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
# Sums over all tokens that nearly cancel; each is measured by the largest of them.
PARAMETER_BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-2}
MIXED = (
    "projected", "conv_weight", "conv_bias", "dt_bias", "a_log", "d", "weight", "bias", "residual", "omega", "s", "t",
)  # fmt: skip


def layer_norm_of(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def leaves_of(tensors):
    """The tensors, and the same in float64, as leaves."""
    narrow = [x.detach().requires_grad_() for x in tensors]
    return narrow, [x.detach().double().requires_grad_() for x in tensors]


def check_gradients(result, truth, leaves, wide, bound):
    gradient = torch.randn_like(result)
    found = torch.autograd.grad(result, leaves, gradient)
    expected = torch.autograd.grad(truth, wide, gradient.double())
    for i, (leaf, f, e) in enumerate(zip(leaves, found, expected, strict=True)):
        assert (f.dtype, f.shape) == (leaf.dtype, leaf.shape)
        assert relative_error(f, e) < bound, i


def check_norm(function, shape, dtype=torch.float32, scale=1.0, device="cpu"):
    x = (scale * torch.randn(shape, device=device)).to(dtype)
    wide_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    parameters = [torch.randn(shape[-1], device=device, dtype=wide_dtype) for _ in range(2)]
    leaves, wide = leaves_of([x, *parameters])
    result, truth = function(*leaves, 1e-5), layer_norm_of(*wide, 1e-5)
    assert result.dtype == dtype
    assert relative_error(result, truth) < BOUNDS[dtype]
    check_gradients(result, truth, leaves, wide, BOUNDS[dtype])


def make_projected(size, batch=1, heads=2, width=8, state=16, dtype=torch.float32, spare=0, device="cpu"):
    """projected, conv_weight, conv_bias, dt_bias, a_log, d, norm_weight, norm_bias; and gate values."""
    length = size[0] * size[1]
    tensors, values = make_mixer_inputs(length, batch, heads, width, state, torch.float64, device=device)
    xbc, dt, z = (x.unflatten(1, size) for x in tensors[:3])
    unused = torch.randn(batch, *size, spare, dtype=torch.float64, device=device)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    parameters = [*make_weights(xbc.shape[-1], device=device), *tensors[3:]]
    projected = torch.cat([z, xbc, dt, unused], -1).to(dtype)
    return [projected, *(x.to(wide) for x in parameters)], [x.to(wide) for x in values]


def mixed_in_float64(tensors, values, rule, steps):
    projected, conv_weight, conv_bias, dt_bias, a_log, d, weight, bias = tensors
    inner, mixed, heads = len(weight), len(conv_weight), len(d)
    z, xbc, dt, _ = projected.split([inner, mixed, heads, projected.shape[-1] - inner - mixed - heads], -1)
    xbc = shifted_products(xbc, conv_weight, conv_bias, activation="silu")
    tokens = (x.flatten(1, 2) for x in (xbc, dt, z))
    return in_float64([*tokens, dt_bias, a_log, d, weight, bias], values, rule, steps).view(z.shape)


def check_mixer(function, tensors, values, rule, steps=(True, True, True), slack=1):
    dtype = tensors[0].dtype
    bound = slack * BOUNDS[dtype]
    leaves, wide = leaves_of([*tensors, *values])
    result = function(*leaves[:3], make_mixing(leaves[3:8], make_gates(leaves[8:], steps), rule))
    truth = mixed_in_float64(wide[:8], wide[8:], rule, steps)
    assert result.dtype == dtype
    assert relative_error(result.detach(), truth.detach()) < bound
    gradient = torch.randn_like(result)
    found = torch.autograd.grad(result, leaves, gradient, allow_unused=True)
    expected = torch.autograd.grad(truth, wide, gradient.double(), allow_unused=True)
    largest = max(e.norm().item() for e in expected[1:] if e is not None)
    for name, leaf, f, e in zip(MIXED, leaves, found, expected, strict=True):
        assert (f is None) == (e is None), name
        if f is None:
            continue
        assert (f.dtype, f.shape) == (leaf.dtype, leaf.shape), name
        if name == "projected":
            for part, truth_part in zip(parts_of(f, tensors), parts_of(e, tensors), strict=True):
                # those of keys and gains vanish where the state has one row
                assert (part - truth_part).norm() < bound * truth_part.norm() + 1e-7 * e.norm(), name
        else:
            assert (f.double() - e).norm().item() < PARAMETER_BOUNDS[dtype] * largest, name


def parts_of(projected, tensors):
    """z, V, B, C, dt and what is unused, as each has a gradient of another size."""
    inner, mixed, heads = (len(tensors[i]) for i in (6, 1, 5))
    state = (mixed - inner) // 2
    unused = projected.shape[-1] - inner - mixed - heads
    return projected.split([inner, inner, state, state, heads, unused], -1)


def test_norm_on_a_cpu_is_torchs_own():
    x, weight, bias = torch.randn(3, 5, 24, requires_grad=True), torch.randn(24), torch.randn(24)
    assert torch.equal(layer_norm(x, weight, bias, 1e-5), torch.nn.functional.layer_norm(x, (24,), weight, bias, 1e-5))


def test_norm_in_float64():
    check_norm(layer_norm, (3, 5, 24), torch.float64)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_a_cpu_leaves_the_mixer_to_the_formula(dtype):
    tensors, values = make_projected((4, 5), dtype=dtype)
    assert not convolve_mix_gate.takes(*tensors[:3], make_mixing(tensors[3:], make_gates(values), Rule()))
    if dtype != torch.bfloat16:
        check_mixer(convolve_mix_gate, tensors, values, Rule())
