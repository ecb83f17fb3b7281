"""Modes, memory and failures on a CUDA device."""

import pytest
import torch

from crispseg.bench import bench_models, bench_ops
from crispseg.bench.contest import Entry, contest
from crispseg.bench.modes import Recorder
from crispseg.bench.settings import choose
from tests.bench.conftest import TINY, model_cell

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def quiet(text):
    pass


def test_all_modes_of_a_model():
    settings = choose("cuda", sizes=(64,), batches=(1, 2), repeats=3, warmup=1)
    result = bench_models([TINY], settings, quiet)
    assert {(cell.mode, cell.precision, cell.status) for cell in result.cells} == {
        (mode, precision, "ok") for mode in ("eager", "graph", "compiled", "fused") for precision in ("fp32", "bf16")
    }
    for cell in result.cells:
        assert cell.peak_source == "allocator"
        assert cell.peak_bytes > 0


def test_the_operator_in_all_modes():
    result = bench_ops(
        choose("cuda", sizes=(64,), batches=(1,), modes=("eager", "graph", "compiled"), repeats=3, warmup=1), say=quiet
    )
    assert [cell for cell in result.cells if cell.status != "ok"] == []


def test_recorded_graphs_answer_alternating_inputs_and_share_memory():
    recorder = Recorder()
    runners = [
        recorder.replayed(lambda x, k=k: (k * x.relu() + x.mean(),), (torch.randn(64, device="cuda"),)) for k in (2, 3)
    ]
    for _ in range(3):
        for k, runner in zip((2, 3), runners, strict=True):
            x = torch.randn(64, device="cuda")
            runner.place((x,))
            assert torch.allclose(runner.run()[0], k * x.relu() + x.mean())


def test_peak_memory_is_what_is_allocated():
    recorder = Recorder()
    x = torch.randn(2**20, device="cuda")  # 4 MiB; two more at a time below, the input counted
    runner = recorder.replayed(lambda x: ((x + 1) * 2,), (x,))
    assert runner.peak_bytes == 3 * 2**22


def test_a_model_that_cannot_be_recorded_does_not_stop_the_others():
    settings = choose("cuda", modes=("graph",), repeats=2, warmup=0)
    inputs = [(torch.randn(8, device="cuda"),)]

    def entry(function):
        return Entry(
            model_cell(milliseconds=None, mode="graph", device="cuda"),
            lambda compile_it: function,
            lambda: inputs,
            lambda: [(2 * inputs[0][0],)],
        )

    entries = [entry(lambda x: (2 * x,)), entry(lambda x: (2 * x + 0 * x.sum().item(),)), entry(lambda x: (x + x,))]
    cells = contest(entries, settings, quiet)
    assert [cell.status for cell in cells] == ["ok", "failed", "ok"]
    assert cells[1].reason
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.randn(4, device="cuda").isfinite().all()


def test_out_of_memory_is_a_cell_of_its_own():
    settings = choose("cuda", modes=("eager",), repeats=2, warmup=0)
    inputs = [(torch.ones(1, device="cuda"),)]
    cells = [model_cell(milliseconds=None, device="cuda") for _ in range(2)]
    functions = [lambda x: (x.expand(2**44).clone(),), lambda x: (2 * x,)]
    entries = [
        Entry(cell, lambda _, function=function: function, lambda: inputs, lambda: [(2 * inputs[0][0],)])
        for cell, function in zip(cells, functions, strict=True)
    ]
    assert [cell.status for cell in contest(entries, settings, quiet)] == ["out of memory", "ok"]


def test_models_prepared_one_after_the_other_are_timed_with_their_own_weights():
    """Their casts and folded copies live as long as the graphs that read them."""
    settings = choose("cuda", sizes=(64,), batches=(1,), precisions=("bf16",), modes=("graph", "fused"), repeats=5)
    result = bench_models([TINY, TINY.replace("state=4", "state=8"), "vssd_nano_upernet"], settings, quiet)
    assert {cell.status for cell in result.cells} == {"ok"}
