"""LayerNorm and the gated mixer with gradients through Triton's interpreter; run by `test_interpreted.py`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crispseg.models.vssd import NCSSDMixer, VSSDConfig
from crispseg.ops import Rule, dispatch
from crispseg.ops.common import column_sums
from crispseg.ops.maps import normalize_kernels
from crispseg.ops.train import gated_mixer_kernels
from tests.conftest import relative_error
from tests.ops.infer.test_gated_mixer import make_mixing
from tests.ops.nc_ssd.interpreted_ncssd import RULES
from tests.ops.nc_ssd.test_ncssd import make_gates
from tests.ops.train.test_gradients import check_mixer, check_norm, layer_norm_of, make_projected

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def mix(projected, conv_weight, conv_bias, mixing):
    return gated_mixer_kernels._forward(projected, conv_weight, conv_bias, *mixing.flat)[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("shape", [(1, 8), (3, 5, 24), (5, 300)], ids=str)
def test_norm(dtype, scale, shape):
    check_norm(normalize_kernels._forward, shape, dtype, scale)


def test_norm_of_a_transposed_map():
    check_norm(
        lambda x, *rest: normalize_kernels._forward(x.transpose(0, 1), *rest).transpose(0, 1), (3, 4, 16), torch.float32
    )


@pytest.mark.parametrize("margin", [0, 3, 8])
def test_every_cut_of_the_norms_gradients_gives_the_same(margin, monkeypatch):
    monkeypatch.setattr(column_sums, "_MOST_PARTS", 4)
    x, weight, bias, gradient = torch.randn(23, 40), torch.randn(40), torch.randn(40), torch.randn(23, 40)
    gate = torch.randn(23, 40 + 2 * margin)[:, margin : margin + 40]
    leaves = [t.double().requires_grad_() for t in (x, weight, bias, gate)]
    truth = layer_norm_of(*leaves[:3], 1e-5) * leaves[3]
    expected = torch.autograd.grad(truth, leaves, gradient.double())
    cuts = (64, 4, 1, 1), (512, 4, 2, 2), (64, 4, 8, 1, 1)
    for tiles in (normalize_kernels.NormGradientTiles(*cut) for cut in cuts):
        of_gate = torch.zeros(23, 42)
        found = normalize_kernels.layer_norm_gradients(
            gradient, x, weight, bias, 1e-5, gate=(gate, of_gate[:, :40]), tiles=tiles
        )
        assert not of_gate[:, 40:].any()
        for f, e in zip((*found, of_gate[:, :40]), expected, strict=True):
            assert relative_error(f, e) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mixer(dtype):
    # The interpreter cuts digits off where a GPU rounds to bfloat16: twice the error.
    tensors, values = make_projected((3, 11), batch=2, state=8, dtype=dtype, spare=2)
    check_mixer(mix, tensors, values, Rule(), slack=1 + (dtype == torch.bfloat16))


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("steps", [(False, False, False), (True, False, True)], ids=str)
def test_rules_and_steps(rule, steps):
    check_mixer(mix, *make_projected((2, 4), state=8), rule, steps)


@settings(max_examples=3)
@given(
    batch=st.integers(1, 2),
    size=st.tuples(st.integers(2, 5), st.integers(1, 5)),
    heads=st.integers(1, 3),
    width=st.integers(3, 12),
    state=st.integers(1, 12),
    spare=st.integers(0, 7),
    rule=st.sampled_from(RULES),
)
def test_any_sizes(batch, size, heads, width, state, spare, rule):
    check_mixer(mix, *make_projected(size, batch, heads, width, state, spare=spare), rule)


def test_the_networks_mixer():
    mixer = NCSSDMixer(16, 2, VSSDConfig(16, (1, 1, 1, 1), (2, 2, 2, 2), 8, 0.0))
    x = torch.randn(1, 3, 5, 16, requires_grad=True)
    leaves = [x, *mixer.parameters()]
    plain = mixer(x)
    gradient = torch.randn_like(plain)
    expected = torch.autograd.grad(plain, leaves, gradient)
    with dispatch.through_the_interpreter():
        found = mixer(x)
    assert not torch.equal(found, plain)
    assert relative_error(found, plain) < 1e-5
    largest = max(e.norm() for e in expected)
    for f, e in zip(torch.autograd.grad(found, leaves, gradient), expected, strict=True):
        assert (f - e).norm() < 1e-5 * largest


def test_gains_of_many_programs():
    dt = torch.randn(2, 3000, 6)[..., 1:4]
    bias, log = torch.randn(3), torch.randn(3)
    leaves = [t.double().requires_grad_() for t in (dt, bias, log)]
    truth = torch.log1p(torch.exp(leaves[0] + leaves[1])) * torch.exp(leaves[2])
    gradient = torch.randn(2, 3000, 3)
    assert relative_error(gated_mixer_kernels.gains(dt, bias, log), truth) < 1e-6
    expected = torch.autograd.grad(truth, leaves, gradient.double())
    of_dt = torch.full((2, 3000, 5), 7.0)
    found = gated_mixer_kernels.gain_gradients(gradient, dt, bias, log, of_dt)
    for f, e in zip((of_dt[..., :3], *found), expected, strict=True):
        assert relative_error(f, e) < 1e-5
    assert not of_dt[..., 3:].any()


def test_the_operators_are_registered_well():
    x, weight, bias = torch.randn(3, 4, 8), torch.rand(8), torch.rand(8)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    torch.library.opcheck(normalize_kernels._forward, (*leaves, 1e-5))
    tensors, values = make_projected((2, 3), state=4)
    tensors = [t.detach().requires_grad_() for t in tensors]
    given = (*tensors[:6], *make_gates(values, (True, True, False)), *tensors[6:], 1e-5, True, False)
    torch.library.opcheck(gated_mixer_kernels._forward, given)


def test_compiles_to_one_graph():
    tensors, values = make_projected((2, 3), state=4, spare=1)

    def function(*arguments):
        return mix(*arguments) + 1

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    check_mixer(lambda *arguments: compiled(*arguments) - 1, tensors, values, Rule())


def test_supports():
    def supported(dtype=torch.float32, rule=Rule()):  # noqa: B008 - frozen
        tensors, values = make_projected((4, 5), dtype=dtype)
        return gated_mixer_kernels.why_not(*tensors[:3], make_mixing(tensors[3:], make_gates(values), rule)) is None

    assert all(supported(dtype) for dtype in DTYPES)
    assert not supported(torch.float64)
    assert not supported(rule=Rule(residual_readout="unnormalized"))
