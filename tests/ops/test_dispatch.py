"""Which kernels are wanted, and which GPUs have room for them."""

import types

import pytest
import torch

from crispseg.ops import dispatch


@pytest.mark.parametrize(("memory", "expected"), [(99, False), (163, False), (227, True)])
def test_gpus_with_less_shared_memory_run_the_formulas(monkeypatch, memory, expected):
    properties = types.SimpleNamespace(shared_memory_per_block_optin=memory * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    dispatch.has_room.cache_clear()
    assert dispatch.has_room(torch.device("cuda", 0)) is expected
    dispatch.has_room.cache_clear()


def test_a_cpu_has_no_use_for_kernels():
    assert not dispatch.kernels_apply(torch.zeros(2, dtype=torch.bfloat16))


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
