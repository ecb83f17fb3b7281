"""The gated mixer against the network's own mixer and a float64 formula."""

import pytest
import torch

from crispseg.models.vssd import NCSSDMixer, VSSDConfig
from crispseg.ops import Rule, ncssd, only
from crispseg.ops.common.norm import Norm
from crispseg.ops.infer.gated_mixer import Mixing, gated_mixer
from tests.conftest import relative_error
from tests.ops.nc_ssd.test_ncssd import BOUNDS, RULES, make_gates


def make_mixer_inputs(length=20, batch=1, heads=2, width=8, state=16, dtype=torch.float64, scale=1.0, device="cpu"):
    """xbc, dt, z (views into one wider tensor), dt_bias, a_log, d, norm_weight, norm_bias; and gate values."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device)

    inner = heads * width
    whole = draw(batch, length, 2 * inner + 2 * state + heads)
    whole[..., inner : 2 * inner + 2 * state] *= scale
    z, xbc, dt = whole.to(dtype).split([inner, inner + 2 * state, heads], dim=-1)
    wide = dtype if dtype == torch.float64 else torch.float32
    parameters = [draw(n).to(wide) for n in (heads, heads, heads, inner, inner)]
    return [xbc, dt, z, *parameters], [(0.3 * draw(n)).to(wide) for n in (heads, heads, width, width)]


def make_mixing(parameters, gates, rule):
    """Of dt_bias, a_log, d, norm_weight, norm_bias."""
    return Mixing(*parameters[:3], gates, rule, Norm(*parameters[3:], 1e-5))


def in_float64(tensors, values, rule, steps=(True, True, True)):
    """Written out again, from the reference operator on."""
    xbc, dt, z, dt_bias, a_log, d, weight, bias = (x.double() for x in tensors)
    inner, heads = z.shape[-1], dt.shape[-1]
    state = (xbc.shape[-1] - inner) // 2
    v, b, c = xbc[..., :inner], xbc[..., inner : inner + state], xbc[..., inner + state :]
    rho = torch.log1p(torch.exp(dt + dt_bias)) * torch.exp(a_log)
    gates = make_gates([x.double() for x in values], steps)
    y = ncssd(v.unflatten(-1, (heads, -1)), b, c, rho, d, gates, rule, backend="reference").flatten(2)
    y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return (y * weight + bias) * z


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_formula(rule, backend):
    tensors, values = make_mixer_inputs(length=13, batch=2)
    with only(backend):
        result = gated_mixer(*tensors[:3], make_mixing(tensors[3:], make_gates(values), rule))
    torch.testing.assert_close(result, in_float64(tensors, values, rule), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_precisions(dtype):
    tensors, values = make_mixer_inputs(length=50, dtype=dtype)
    result = gated_mixer(*tensors[:3], make_mixing(tensors[3:], make_gates(values), Rule()))
    assert result.dtype == dtype
    assert relative_error(result, in_float64(tensors, values, Rule())) < BOUNDS[dtype]


def test_equals_the_networks_mixer():
    mixer = NCSSDMixer(8, 2, VSSDConfig(8, (1, 1, 1, 1), (2, 2, 2, 2), 4, 0.0)).double()
    torch.nn.init.normal_(mixer.norm.weight)
    torch.nn.init.normal_(mixer.norm.bias)
    x = torch.randn(2, 5, 7, 8, dtype=torch.float64)
    z, xbc, dt = mixer.project(x)
    mixed = gated_mixer(
        mixer.convolve(xbc).flatten(1, 2),
        dt.flatten(1, 2),
        z.flatten(1, 2),
        mixer.mixing(mixer.gates()),
    )
    torch.testing.assert_close(mixer.out_proj(mixed).unflatten(1, (5, 7)), mixer(x))


def test_gradients_come_from_the_formula():
    tensors, values = make_mixer_inputs(length=7)
    leaves = [x.detach().requires_grad_() for x in tensors]

    def function(*tensors):
        return gated_mixer(*tensors[:3], make_mixing(tensors[3:], make_gates(values), Rule()))

    assert torch.autograd.gradcheck(function, leaves, atol=1e-6)
