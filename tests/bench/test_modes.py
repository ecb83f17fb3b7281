"""Recording a graph, as far as it can be followed without a GPU; test_gpu.py has the rest."""

import contextlib

import pytest
import torch

from crispseg.bench import modes


@contextlib.contextmanager
def fails_at_its_end(graph, pool, stream):
    """Like a capture that an error in its body has spoilt."""
    try:
        yield
    finally:
        raise RuntimeError("operation failed due to a previous error during capture")


def test_the_cause_of_a_failed_capture_is_told_and_its_memory_not_used_again(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", fails_at_its_end)
    recorder = modes.Recorder()
    recorder.pool = (0, 1)

    def function(x):
        raise ValueError("the cause")

    with pytest.raises(ValueError, match="the cause"):
        recorder._capture(None, function, (torch.ones(1),))
    assert recorder.pool is None


def test_a_capture_that_fails_by_itself_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", fails_at_its_end)
    with pytest.raises(RuntimeError, match="previous error"):
        modes.Recorder()._capture(None, lambda x: (x,), (torch.ones(1),))


@pytest.mark.parametrize("fails", [False, True])
def test_a_rehearsal_forbids_waiting_and_allows_it_again(monkeypatch, fails):
    allowed = ["default"]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: allowed[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", allowed.append)
    during = []

    def function():
        during.append(allowed[-1])
        if fails:
            raise RuntimeError("called a synchronizing CUDA operation")
        return ()

    with pytest.raises(RuntimeError) if fails else contextlib.nullcontext():
        modes._rehearse(function, ())
    assert during == ["error"]
    assert allowed[-1] == "default"


def test_plain_runs_what_is_in_place():
    runner = modes.MODES["eager"](lambda compile_it: lambda x: (x + 1,), (torch.zeros(2),), modes.Recorder())
    runner.place((torch.ones(2),))
    assert torch.equal(runner.run()[0], torch.full((2,), 2.0))
    assert runner.peak_bytes is None


def test_compiled_asks_for_the_compiled_function():
    asked = []

    def make(compile_it):
        asked.append(compile_it)
        return lambda x: (x,)

    for mode in ("eager", "compiled"):
        modes.MODES[mode](make, (torch.zeros(1),), modes.Recorder())
    assert asked == [False, True]
