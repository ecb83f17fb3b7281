"""The gated mixer's kernels through Triton's interpreter; run by `test_interpreted.py`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crispseg.ops import Rule, dispatch
from crispseg.ops.infer.gated_mixer import gated_mixer
from tests.conftest import relative_error
from tests.ops.infer.test_gated_mixer import in_float64, make_mixer_inputs, make_mixing
from tests.ops.nc_ssd.interpreted_ncssd import RULES
from tests.ops.nc_ssd.test_ncssd import BOUNDS, STEPS, make_gates


def check(tensors, values, rule, steps=(True, True, True)):
    truth = in_float64(tensors, values, rule, steps)
    result = gated_mixer.by_kernel(*tensors[:3], make_mixing(tensors[3:], make_gates(values, steps), rule))
    assert result.dtype == tensors[2].dtype
    assert result.is_contiguous()
    assert relative_error(result, truth) < BOUNDS[result.dtype]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_rules_and_precisions(rule, dtype):
    check(*make_mixer_inputs(length=70, batch=2, dtype=dtype), rule)


@pytest.mark.parametrize("steps", STEPS, ids=str)
def test_steps_on_and_off(steps):
    check(*make_mixer_inputs(dtype=torch.float32), Rule(), steps)


@settings(max_examples=8)
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 90),
    heads=st.integers(1, 3),
    width=st.integers(1, 20),
    state=st.integers(1, 40),
    rule=st.sampled_from(RULES),
    scale=st.sampled_from([1.0, 1e3]),
)
def test_any_sizes(batch, length, heads, width, state, rule, scale):
    if heads * width > 1:  # the LayerNorm of one channel is a division of rounding by eps
        check(*make_mixer_inputs(length, batch, heads, width, state, torch.float32, scale), rule)


def test_small_gains_keep_their_digits():
    """softplus(dt) of a fresh network is about 1e-3."""
    tensors, values = make_mixer_inputs(dtype=torch.float32)
    tensors[1] -= 8
    check(tensors, values, Rule(), (False, False, False))


def test_compiled_without_graph_breaks():
    tensors, values = make_mixer_inputs(length=9, dtype=torch.float32)

    def function(xbc, dt, z):
        return gated_mixer.by_kernel(xbc, dt, z, make_mixing(tensors[3:], make_gates(values), Rule())) + 1

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*tensors[:3]), function(*tensors[:3]))


def test_what_it_cannot_take_is_left_to_the_formula():
    def why_not(dtype, rule=Rule()):  # noqa: B008 - frozen
        tensors, values = make_mixer_inputs(dtype=dtype)
        with dispatch.through_the_interpreter():
            return gated_mixer.why_not(*tensors[:3], make_mixing(tensors[3:], make_gates(values), rule))

    assert why_not(torch.float32) is None
    assert why_not(torch.float64) == "torch.float64"
    assert "does not know" in why_not(torch.float32, Rule(residual_readout="unnormalized"))
