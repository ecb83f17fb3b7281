"""The operator against a brute-force double loop, its own reference, and the laws it must obey."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crispseg.errors import UserError
from crispseg.ops import (
    Gates,
    Rule,
    accumulate,
    add_query_sums,
    add_states,
    ncssd,
    query_sums,
    read_out,
)
from crispseg.ops.nc_ssd import formula as torch_path
from tests.conftest import relative_error

RULES = [
    Rule(*choice)
    for choice in itertools.product(("raw", "normalized"), ("row", "unnormalized", "elu"), ("after", "before"))
]
STEPS = list(itertools.product((False, True), repeat=3))  # residual, high-pass, rebalance


def make_inputs(batch=2, length=11, heads=3, width=4, state=5, dtype=torch.float64, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    v, b, c = draw(batch, length, heads, width), draw(batch, length, state), draw(batch, length, state)
    tokens = [(scale * x).to(dtype) for x in (v, b, c)]
    rho = draw(batch, length, heads).exp().mul(0.3).to(dtype)
    parameters = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return [*tokens, rho, draw(heads).to(parameters)], [
        0.3 * draw(n).to(parameters) for n in (heads, heads, width, width)
    ]


def make_gates(values, steps=(True, True, True)):
    residual, highpass, rebalance = steps
    g, omega, s, t = values
    return Gates(
        g if residual else None, omega if highpass else None, s if rebalance else None, t if rebalance else None
    )


def brute_force(v, b, c, rho, d, gates, rule):
    """Every pair of tokens, one number at a time; nothing shared with the code under test."""
    batch, length, heads, width = v.shape
    state = b.shape[-1]

    def positive(x):
        return x + 1 if x > 0 else math.exp(x)

    def feature(x):
        return x if rule.fusion == "raw" else positive(x)

    read_by = positive if rule.residual_readout == "elu" else feature

    out = torch.zeros(v.shape, dtype=torch.float64)
    for n in range(batch):
        key = [[feature(b[n, j, m].item()) for m in range(state)] for j in range(length)]
        query = [[feature(c[n, i, m].item()) for m in range(state)] for i in range(length)]
        weight = [
            [sum(q * k for q, k in zip(query[i], key[j], strict=True)) for j in range(length)] for i in range(length)
        ]
        read = [
            [sum(read_by(c[n, i, m].item()) * read_by(b[n, j, m].item()) for m in range(state)) for j in range(length)]
            for i in range(length)
        ]
        row = [max(sum(weight[i]), 1e-6) if rule.fusion == "normalized" else 1.0 for i in range(length)]
        for h, p in itertools.product(range(heads), range(width)):
            value = [v[n, j, h, p].item() for j in range(length)]
            gain = [rho[n, j, h].item() for j in range(length)]
            y = []
            for i in range(length):
                fused = sum(weight[i][j] * gain[j] * value[j] for j in range(length)) / row[i]
                if rule.skip == "before":
                    fused += d[h].item() * value[i]
                if gates.residual is not None:
                    error = sum(read[i][j] * (value[j] - gain[j] * value[j]) for j in range(length))
                    if rule.residual_readout == "row":
                        error /= row[i]
                    fused += gates.residual[h].item() * error
                y.append(fused)
            mean = sum(y) / length
            for i in range(length):
                x = y[i]
                if gates.omega is not None:
                    x += gates.omega[h].item() * (x - mean)
                if gates.s is not None:
                    x = (1 + gates.s[p].item()) * mean + (1 + gates.t[p].item()) * (x - mean)
                if rule.skip == "after":
                    x += d[h].item() * value[i]
                out[n, i, h, p] = x
    return out


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("steps", STEPS, ids=str)
def test_all_paths_equal_a_double_loop(rule, steps):
    inputs, values = make_inputs(batch=1, length=6, heads=2, width=2, state=3)
    gates = make_gates(values, steps)
    truth = brute_force(*inputs, gates, rule)
    for result in (
        ncssd(*inputs, gates, rule, backend="reference"),
        ncssd(*inputs, gates, rule, backend="torch"),
        torch_path.ncssd(*inputs, gates, rule, chunk=4),
    ):
        torch.testing.assert_close(result, truth, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("chunk", [100, 4], ids=["whole", "chunked"])
def test_gradients_by_finite_differences(rule, chunk):
    inputs, values = make_inputs(batch=1, length=7, heads=2, width=2, state=3)
    arguments = [x.requires_grad_() for x in (*inputs, *values)]

    def function(*args):
        return torch_path.ncssd(*args[:5], Gates(*args[5:]), rule, chunk=chunk)

    assert torch.autograd.gradcheck(function, arguments, atol=1e-6)


@given(
    length=st.integers(1, 70),
    batch=st.integers(1, 3),
    heads=st.integers(1, 4),
    width=st.integers(1, 6),
    state=st.integers(1, 7),
    rule=st.sampled_from(RULES),
    steps=st.sampled_from(STEPS),
    chunk=st.integers(1, 80),
    seed=st.integers(0, 10**6),
)
def test_torch_path_equals_reference_with_gradients(length, batch, heads, width, state, rule, steps, chunk, seed):
    inputs, values = make_inputs(batch, length, heads, width, state, seed=seed)
    leaves = [x.requires_grad_() for x in (*inputs, *values)]
    gates = make_gates(values, steps)
    truth = ncssd(*inputs, gates, rule, backend="reference")
    result = torch_path.ncssd(*inputs, gates, rule, chunk=chunk)
    torch.testing.assert_close(result, truth, rtol=1e-9, atol=1e-9)
    with torch.no_grad():  # chunks are then put together otherwise
        torch.testing.assert_close(torch_path.ncssd(*inputs, gates, rule, chunk=chunk), truth, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(truth)
    expected = torch.autograd.grad((truth * weight).sum(), leaves, allow_unused=True, materialize_grads=True)
    found = torch.autograd.grad((result * weight).sum(), leaves, allow_unused=True, materialize_grads=True)
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-8, atol=1e-7)


BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("length", [1, 33, 5000])
@pytest.mark.parametrize("fusion", ["raw", "normalized"])
def test_precision_against_float64(dtype, scale, length, fusion):
    """Same tokens, rounded to `dtype` first: what is left is the error of the arithmetic."""
    inputs, values = make_inputs(length=length, dtype=dtype, scale=scale, heads=2, width=8, state=8)
    rule = Rule(fusion)
    wide = [x.double() for x in inputs]
    truth = ncssd(*wide, make_gates([x.double() for x in values]), rule, backend="reference")
    result = torch_path.ncssd(*inputs, make_gates(values), rule, chunk=1024)
    assert result.dtype == torch.float32
    assert result.isfinite().all()
    assert relative_error(result, truth) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_gradients(dtype):
    inputs, values = make_inputs(length=600, dtype=dtype, heads=2, width=8, state=8)
    wide = [x.double().requires_grad_() for x in (*inputs, *values)]
    ncssd(*wide[:5], Gates(*wide[5:]), backend="reference").square().sum().backward()
    leaves = [x.requires_grad_() for x in (*inputs, *values)]
    torch_path.ncssd(*inputs, Gates(*values), Rule(), chunk=256).square().sum().backward()
    for leaf, truth in zip(leaves, wide, strict=True):
        assert relative_error(leaf.grad, truth.grad) < 1e-2


def test_autocast_does_not_reach_inside():
    inputs, values = make_inputs(length=300, dtype=torch.float32)
    gates = make_gates(values)
    plain = ncssd(*inputs, gates)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ncssd(*inputs, gates), plain)


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(cuts=st.lists(st.integers(1, 39), max_size=4), seed=st.integers(0, 10**6))
def test_states_of_parts_add_up_to_the_whole(rule, cuts, seed):
    inputs, values = make_inputs(length=40, seed=seed)
    v, b, c, rho, d = inputs
    gates = make_gates(values)
    edges = [0, *sorted(set(cuts)), 40]
    parts = [slice(start, stop) for start, stop in itertools.pairwise(edges)]

    state = accumulate(v[:, parts[0]], b[:, parts[0]], rho[:, parts[0]], gates, rule)
    for part in parts[1:]:
        state = add_states(state, accumulate(v[:, part], b[:, part], rho[:, part], gates, rule))
    sums = query_sums(c[:, parts[0]], state, rule)
    for part in parts[1:]:
        sums = add_query_sums(sums, query_sums(c[:, part], state, rule))
    pieces = [read_out(v[:, part], c[:, part], d, state, sums, gates, rule) for part in parts]
    torch.testing.assert_close(torch.cat(pieces, 1), ncssd(*inputs, gates, rule), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_permuting_tokens_permutes_outputs(rule):
    (v, b, c, rho, d), values = make_inputs(length=29)
    order = torch.randperm(29)
    result = ncssd(v[:, order], b[:, order], c[:, order], rho[:, order], d, make_gates(values), rule)
    torch.testing.assert_close(result, ncssd(v, b, c, rho, d, make_gates(values), rule)[:, order])


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_zero_gates_are_the_identity(rule, backend):
    inputs, values = make_inputs()
    zero = Gates(*(torch.zeros_like(x) for x in values))
    torch.testing.assert_close(ncssd(*inputs, zero, rule, backend), ncssd(*inputs, Gates(), rule, backend))


@pytest.mark.parametrize("times", [2, 5])
def test_row_readout_is_invariant_to_repeating_the_tokens(times):
    (v, b, c, rho, d), values = make_inputs(length=13)
    gates = make_gates(values)
    once = ncssd(v, b, c, rho, d, gates)
    many = ncssd(*(x.repeat(1, times, *[1] * (x.dim() - 2)) for x in (v, b, c, rho)), d, gates)
    torch.testing.assert_close(many, once.repeat(1, times, 1, 1))
    rule = Rule(residual_readout="unnormalized")
    grown = ncssd(*(x.repeat(1, times, *[1] * (x.dim() - 2)) for x in (v, b, c, rho)), d, gates, rule)
    assert relative_error(grown, ncssd(v, b, c, rho, d, gates, rule).repeat(1, times, 1, 1)) > 0.1


def test_memory_beyond_inputs_and_outputs_does_not_grow():
    """The largest temporary of a long sequence is a chunk's, forward and backward."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        def __init__(self, allowed):
            super().__init__()
            self.allowed, self.largest = allowed, 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            size = result.untyped_storage().nbytes() if isinstance(result, torch.Tensor) else 0
            if size not in self.allowed:  # the allowed ones are inputs, their gradients and the output
                self.largest = max(self.largest, size)
            return result

    sizes = []
    for length in (1536, 6144):  # no whole tensor has the size of a chunk
        inputs, values = make_inputs(length=length, heads=2, width=4, state=4)
        leaves = [x.requires_grad_() for x in (*inputs, *values)]
        whole = {x.untyped_storage().nbytes() for x in inputs}
        with Largest(whole) as seen:
            torch_path.ncssd(*leaves[:5], Gates(*leaves[5:]), Rule(), chunk=256).sum().backward()
        sizes.append(seen.largest)
    assert sizes[0] == sizes[1] > 0


def test_backend_by_argument_and_environment(monkeypatch):
    inputs, _ = make_inputs()
    with pytest.raises(UserError, match="unknown operator backend 'tritn'"):
        ncssd(*inputs, backend="tritn")
    called = []
    monkeypatch.setitem(__import__("crispseg.ops").ops.BACKENDS, "reference", lambda *a: called.append(1))
    monkeypatch.setenv("CRISPSEG_OPS_BACKEND", "reference")
    ncssd(*inputs)
    assert called == [1]
    ncssd(*inputs, backend="torch")
    assert called == [1]
