"""The operator's kernels through Triton's interpreter; run by `test_interpreted.py`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crispseg.errors import UserError
from crispseg.ops import BACKENDS, Rule, ncssd
from crispseg.ops.nc_ssd import backward as ncssd_backward
from crispseg.ops.nc_ssd import operator as triton_path
from tests.conftest import relative_error
from tests.ops.nc_ssd.agreement import check, check_gates
from tests.ops.nc_ssd.test_ncssd import BOUNDS, STEPS, make_gates, make_inputs

RULES = [Rule(fusion, "row", skip) for fusion in ("raw", "normalized") for skip in ("after", "before")]
HALVES = (torch.bfloat16, torch.float16)


def small(length=40, batch=1, heads=2, width=8, state=16, **options):
    return make_inputs(batch, length, heads, width, state, **options)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules(rule):
    check(triton_path.ncssd, *small(length=70, batch=2, dtype=torch.float32), rule)


@pytest.mark.parametrize("steps", STEPS, ids=str)
def test_steps_on_and_off(steps):
    check(triton_path.ncssd, *small(length=20, dtype=torch.float32), Rule(), steps)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("fusion", ["raw", "normalized"])
def test_half_precision(dtype, scale, fusion):
    check(triton_path.ncssd, *small(dtype=dtype, scale=scale), Rule(fusion))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-3)], ids=str)
def test_gates(dtype, bound):
    check_gates(triton_path.ncssd, *small(length=256, dtype=dtype), bound)


@settings(max_examples=6)
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 90),
    heads=st.integers(1, 3),
    width=st.integers(1, 20),
    state=st.integers(1, 40),
    rule=st.sampled_from(RULES),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_any_sizes(batch, length, heads, width, state, rule, scale):
    check(triton_path.ncssd, *make_inputs(batch, length, heads, width, state, torch.float32, scale), rule)


@pytest.mark.parametrize("state", [1, 16])
def test_one_token(state):
    check(triton_path.ncssd, *small(length=1, state=state, dtype=torch.float32), Rule())


def test_rows_at_the_floor():
    """Queries that see no key: their row is not divided by, and passes no gradient to the keys' sum."""
    (v, b, c, rho, d), values = small(length=24, dtype=torch.float32)
    c[:, ::3] -= 40
    check(triton_path.ncssd, [v, b, c, rho, d], values, Rule())


@pytest.mark.parametrize("rule", [Rule(), Rule(skip="before")], ids=str)
def test_rows_on_both_sides_of_the_floor(rule):
    """Rows below it are constants, but what they read out, and its gradients, are not negligible."""
    (v, b, c, rho, d), values = small(length=24, batch=2, dtype=torch.float32)
    b, c = b - 8, c - 12.8
    row = torch.einsum("bin,bn->bi", c.double().exp(), b.double().exp().sum(1))
    assert 0.2 < (row < 1e-6).double().mean() < 0.8
    check(triton_path.ncssd, [v, b, c, rho, d], values, rule)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_without_gates(rule):
    check(triton_path.ncssd, *small(length=9, dtype=torch.float32), rule, (False, False, False))


@pytest.mark.parametrize("rule", RULES[1:3], ids=str)
def test_many_columns_and_parts(rule, monkeypatch):
    """Heads that together are wider than a program takes, and more parts of dk than are added in passing."""
    monkeypatch.setattr(ncssd_backward, "_MOST_PARTS", 2)
    check(triton_path.ncssd, *small(length=70, heads=3, width=50, state=20, dtype=torch.float32), rule)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("rule", RULES[1:3], ids=str)
def test_blocks_that_nothing_is_missing_from(rule, dtype):
    """Tokens, states and heads that fill whole blocks are loaded without masks."""
    check(triton_path.ncssd, *make_inputs(2, 64, 2, 16, 16, dtype), rule)


def test_rows_at_the_floor_in_whole_blocks():
    (v, b, c, rho, d), values = make_inputs(1, 64, 2, 16, 16, torch.float32)
    c[:, 5::7] -= 40
    check(triton_path.ncssd, [v, b, c, rho, d], values, Rule())


@pytest.mark.parametrize("length", [17, 64])
@pytest.mark.parametrize("state", [16, 5])
def test_gradients_side_by_side(length, state):
    (v, b, c, rho, d), values = small(length=length, batch=2, state=state, dtype=torch.float32)
    gates = make_gates(values)
    sums = triton_path._forward(v, b, c, rho, d, *gates, True, False)[1:]
    problem = ncssd_backward.Problem(v, b, c, rho, d, gates, True, False, *sums)
    grad = torch.randn(v.shape)
    expected = ncssd_backward.gradients(problem, grad)
    out = torch.full((2, length, 16 + 2 * state), torch.nan)
    found = ncssd_backward.gradients(problem, grad, out)
    assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))
    assert torch.equal(out, torch.cat([expected[0].flatten(2), *expected[1:3]], 2))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_the_gradient_may_have_any_precision(dtype, kind):
    """As rounded it is the same gradient, and gives the same results."""
    (v, b, c, rho, d), values = small(length=17, dtype=dtype)
    gates = make_gates(values)
    sums = triton_path._forward(v, b, c, rho, d, *gates, True, False)[1:]
    problem = ncssd_backward.Problem(v, b, c, rho, d, gates, True, False, *sums)
    grad = torch.randn(v.shape).to(kind)
    found = ncssd_backward.gradients(problem, grad)
    expected = ncssd_backward.gradients(problem, grad.float())
    assert [x.dtype for x in found] == [x.dtype for x in (v, b, c, rho, d, *values)]
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-6, atol=1e-6)


def test_a_mean_larger_than_what_varies():
    """The state is read out without its mean, so bfloat16 keeps the digits of the queries' gradients."""
    (v, b, c, rho, d), values = small(length=64, dtype=torch.float32)
    tokens = [x.bfloat16() for x in (v + 10, b, c)]
    check(triton_path.ncssd, [*tokens, torch.full_like(rho, 0.5), d], values, Rule())


def test_views_into_wider_tensors():
    """As in the network: v, b, c side by side; and channels first, with a gradient that is a view itself."""
    (v, b, c, rho, d), values = small(length=33, batch=2, dtype=torch.float32)
    wide = torch.cat([v.flatten(2), b, c], 2)
    cut_v, cut_b, cut_c = wide.split([16, 16, 16], 2)
    gates = make_gates(values)
    plain = triton_path.ncssd(v, b, c, rho, d, gates, Rule())
    assert torch.equal(triton_path.ncssd(cut_v.unflatten(2, (2, 8)), cut_b, cut_c, rho, d, gates, Rule()), plain)

    def first(*inputs_gates_rule):
        *tensors, gates, rule = inputs_gates_rule
        turned = [x.movedim(1, -1).contiguous().movedim(-1, 1) for x in tensors[:4]]
        return triton_path.ncssd(*turned, tensors[4], gates, rule).movedim(1, -1).contiguous().movedim(-1, 1)

    check(first, [v, b, c, rho, d], values, Rule())


def test_an_expanded_gradient():
    inputs, values = small(length=20, dtype=torch.float32)
    leaves = [x.requires_grad_() for x in inputs]
    gates = make_gates(values)
    found = torch.autograd.grad(triton_path.ncssd(*leaves, gates, Rule()).sum(), leaves)
    expected = torch.autograd.grad(ncssd(*leaves, gates, Rule(), backend="torch").sum(), leaves)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-4, atol=1e-4)


def test_registered_so_that_compilers_accept_it():
    inputs, values = small(length=17, dtype=torch.float32)
    leaves = [x.requires_grad_() for x in (*inputs, *values)]
    torch.library.opcheck(triton_path._forward, (*leaves, True, False))
    torch.library.opcheck(triton_path._forward, (*leaves[:5], None, None, None, None, False, False))


def test_compiled_without_graph_breaks():
    inputs, values = small(length=17, dtype=torch.float32)
    leaves = [x.requires_grad_() for x in inputs]
    gates = make_gates(values)

    def function(*tensors):
        return ncssd(*tensors, gates, backend="triton").square().sum()

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*leaves), leaves)
    expected = torch.autograd.grad(function(*leaves), leaves)
    assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))


def test_autocast_does_not_reach_inside():
    inputs, values = small(length=17, dtype=torch.float32)
    leaves = [x.requires_grad_() for x in inputs]
    gates = make_gates(values)
    plain = torch.autograd.grad(triton_path.ncssd(*leaves, gates, Rule()).sum(), leaves)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = torch.autograd.grad(triton_path.ncssd(*leaves, gates, Rule()).sum(), leaves)
    assert all(torch.equal(x, y) for x, y in zip(plain, cast, strict=True))


def test_forced_by_name_only_on_a_cpu():
    inputs, values = small(length=9, dtype=torch.float32)
    assert next(iter(BACKENDS)) == "triton"
    forced = ncssd(*inputs, make_gates(values), backend="triton")
    chosen = ncssd(*inputs, make_gates(values))
    assert torch.equal(chosen, ncssd(*inputs, make_gates(values), backend="torch"))
    assert 0 <= relative_error(forced, chosen) < 1e-5


@pytest.mark.parametrize(
    "options, rule",
    [
        ({"dtype": torch.float64}, Rule()),
        ({"dtype": torch.float32}, Rule(residual_readout="unnormalized")),
        ({"dtype": torch.float32, "state": 130}, Rule()),
        ({"dtype": torch.float32, "width": 130}, Rule()),
    ],
)
def test_what_it_cannot_take_is_said(options, rule):
    inputs, values = small(length=3, **options)
    with pytest.raises(UserError, match='use backend="torch"'):
        ncssd(*inputs, make_gates(values), rule, backend="triton")
