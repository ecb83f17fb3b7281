"""Which path an operator takes, and why."""

import subprocess
import types
import warnings

import pytest
import torch

from crispseg.errors import UserError
from crispseg.ops import dispatch
from crispseg.ops.common.custom import custom_op, differentiable
from crispseg.ops.dispatch import CPU_WAYS, FLOATS, KernelWarning, off, operator, operators, why_not_on_a_cpu


@pytest.fixture
def everywhere(monkeypatch):
    """Kernels may run here: these are written in torch."""
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    monkeypatch.delenv(dispatch.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.delenv(dispatch.OFF_VARIABLE, raising=False)
    dispatch.switched_off.cache_clear()
    with dispatch.through_the_interpreter():
        yield
    dispatch.switched_off.cache_clear()


@pytest.fixture
def doubled(monkeypatch):
    operators()
    monkeypatch.setattr(dispatch, "_REGISTERED", dict(dispatch._REGISTERED))

    @operator("doubled", dtypes=FLOATS)
    def doubled(x):
        return 2 * x

    @doubled.kernel
    def _(x):
        return 2 * x + 0 * x.sum() + 1000  # to be told apart

    return doubled


def test_a_kernel_takes_the_place_of_its_formula(everywhere, doubled):
    x = torch.ones(3)
    assert doubled.takes(x)
    assert doubled(x).tolist() == [1002.0] * 3
    assert doubled.formula(x).tolist() == [2.0] * 3


def test_what_a_kernel_does_not_take(everywhere, doubled):
    assert doubled.why_not(torch.ones(3).double()) == "torch.float64"
    assert doubled(torch.ones(1).double()).item() == 2
    doubled.gradients = "none"
    assert doubled.why_not(torch.ones(3, requires_grad=True)) == "a gradient is asked for"
    with torch.no_grad():
        assert doubled.takes(torch.ones(3, requires_grad=True))
    doubled.gradients = "needed"
    assert doubled.why_not(torch.ones(3)) == "no gradient is asked for"
    doubled.unless(lambda x: dispatch.too_many(len(x), 2, "elements"))
    assert doubled.why_not(torch.ones(3, requires_grad=True)) == "more than 2 elements"


def test_a_cpu_has_no_use_for_kernels(doubled):
    assert doubled.why_not(torch.ones(3)) == "not on a GPU"
    for made in operators().values():
        assert made.why_not_on(torch.device("cpu")) == "no GPU"


@pytest.mark.parametrize("value", ["doubled", " layer_norm, doubled", "doubled,"])
def test_the_environment_switches_one_off(everywhere, doubled, monkeypatch, value):
    monkeypatch.setenv(dispatch.OFF_VARIABLE, value)
    dispatch.switched_off.cache_clear()
    assert doubled.why_not(torch.ones(1)) == "switched off"


def test_a_context_switches_one_off(everywhere, doubled):
    with off("doubled"), off("doubled", "mlp"):
        assert doubled(torch.ones(1)).item() == 2
    assert doubled(torch.ones(1)).item() == 1002


def test_an_operator_that_nobody_knows(everywhere, doubled, monkeypatch):
    with pytest.raises(UserError, match="layer_norm"), off("layernorm"):
        pass
    monkeypatch.setenv(dispatch.OFF_VARIABLE, "duobled")
    dispatch.switched_off.cache_clear()
    with pytest.raises(UserError, match="doubled"):
        doubled(torch.ones(1))


@pytest.mark.parametrize("memory", [64, 99, 163])
def test_gpus_with_less_shared_memory_run_the_formulas(monkeypatch, memory):
    properties = types.SimpleNamespace(shared_memory_per_block_optin=memory * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    for cache in (dispatch.shared_memory, dispatch.why_no_room):
        cache.cache_clear()
    here = {name: made.why_not_on(torch.device("cuda", 0)) for name, made in operators().items()}
    for cache in (dispatch.shared_memory, dispatch.why_no_room):
        cache.cache_clear()
    assert here["conv_norm_mlp"] == f"{memory} KB of shared memory, where the kernel was cut for 227"
    assert (here["halve_and_mix"] is None) == (memory >= 163)
    assert (here["best_cosines"] is None) == (memory >= 99)
    assert here["layer_norm"] is None


def out_of_resources():
    """As Triton's, which need not be installed."""
    module = types.ModuleType("triton.errors")
    error = type("TritonError", (Exception,), {"__module__": module.__name__})
    return type("OutOfResources", (error,), {})("out of resource: shared memory, Required: 160000, limit: 101376")


def test_a_kernel_that_fails_is_given_up_with_one_warning(everywhere, doubled):
    @doubled.kernel
    def _(x):
        raise out_of_resources()

    with pytest.warns(KernelWarning, match=r"doubled.*shared memory"):
        assert doubled(torch.ones(1)).item() == 2
    with warnings.catch_warnings(action="error"):
        assert doubled(torch.ones(1)).item() == 2
    assert "101376" in doubled.why_not(torch.ones(1))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to find C compiler. Please specify via CC environment variable."),
        RuntimeError("Triton Error [CUDA]: device kernel image is invalid"),
        subprocess.CalledProcessError(1, ["/usr/bin/gcc", "main.c"]),
    ],
)
def test_a_machine_that_cannot_build_kernels_takes_the_formulas(everywhere, doubled, error):
    @doubled.kernel
    def _(x):
        raise error

    with pytest.warns(KernelWarning, match="doubled"):
        assert doubled(torch.ones(1)).item() == 2


def test_what_a_kernel_does_wrong_is_not_hidden(everywhere, doubled):
    @doubled.kernel
    def _(x):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        doubled(torch.ones(1))


def test_gradients_fall_back_to_those_of_the_formula(everywhere, doubled):
    @custom_op("test_doubled", like=torch.empty_like)
    def _doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    def fails(gradient, x):
        raise out_of_resources()

    differentiable(_doubled, fails, doubled)
    doubled.kernel(_doubled)
    x = torch.randn(4, requires_grad=True)
    with pytest.warns(KernelWarning, match="doubled"):
        (3 * doubled(x)).sum().backward()
    assert x.grad.tolist() == [6.0] * 4


def test_gradients_fall_back_where_the_inputs_were_not_kept(everywhere, doubled):
    @custom_op("test_doubled_and_forgotten", like=lambda x, y: torch.empty_like(x))
    def _doubled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2 * x + y

    def fails(gradient, y):
        raise out_of_resources()

    differentiable(
        _doubled, fails, doubled, remember=lambda inputs, outputs: inputs[1:], plain=lambda g, y: (2 * g, g * y)
    )
    x, y = torch.randn(4, requires_grad=True), torch.full((4,), 5.0, requires_grad=True)
    with pytest.warns(KernelWarning, match="doubled"):
        _doubled(x, y).sum().backward()
    assert x.grad.tolist() == [2.0] * 4 and y.grad.tolist() == [5.0] * 4


def test_ways_on_a_cpu_are_switched_off_by_name(monkeypatch):
    monkeypatch.delenv(dispatch.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(dispatch, "_HAS_ONEDNN", True)
    assert {way: why_not_on_a_cpu(way) for way in CPU_WAYS} == dict.fromkeys(CPU_WAYS)
    with off("winograd"):
        assert why_not_on_a_cpu("winograd") == "switched off" and why_not_on_a_cpu("onednn") is None
    with off("onednn"):  # the others stand on it
        assert {why_not_on_a_cpu(way) for way in CPU_WAYS} == {"switched off"}
    monkeypatch.setenv(dispatch.ENVIRONMENT_VARIABLE, "triton")  # says nothing about a CPU
    assert why_not_on_a_cpu("onednn") is None
    monkeypatch.setenv(dispatch.ENVIRONMENT_VARIABLE, "torch")
    assert why_not_on_a_cpu("onednn") == "CRISPSEG_OPS_BACKEND=torch"
    monkeypatch.setattr(dispatch, "_HAS_ONEDNN", False)
    assert "no oneDNN" in why_not_on_a_cpu("attention_in_parts")


@pytest.mark.parametrize(
    ("value", "expected"), [(None, True), ("", True), ("triton", True), ("torch", False), ("reference", False)]
)
def test_the_environment_forbids_kernels(monkeypatch, value, expected):
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    monkeypatch.delenv(dispatch.ENVIRONMENT_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(dispatch.ENVIRONMENT_VARIABLE, value)
    assert dispatch.kernels_wanted() is expected


class _AsksWhetherExporting(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if dispatch.exporting() else x - 1


def test_a_program_that_is_compiled_is_not_exported():
    one = torch.ones(3)
    assert torch.compile(_AsksWhetherExporting(), backend="eager", fullgraph=True)(one).tolist() == [0, 0, 0]
    exported = torch.export.export(_AsksWhetherExporting(), (one,), strict=False)
    assert exported.module()(one).tolist() == [2, 2, 2]
    assert _AsksWhetherExporting()(one).tolist() == [0, 0, 0]


def test_an_operator_compiles_to_one_graph(everywhere, doubled):
    assert torch.compile(lambda x: doubled(x), backend="eager", fullgraph=True)(torch.ones(1)).item() == 1002


def test_every_registered_module_is_there_and_none_is_forgotten():
    before = set(operators())
    assert {"ncssd", "gated_mixer", "layer_norm", "mlp", "settle", "convolve_mix_gate"} <= before
    assert all(made.__doc__ for made in operators().values())
