"""Recording a graph, as far as it can be followed without a GPU; test_gpu.py has the rest."""

import contextlib
import gc
import weakref

import pytest
import torch

from crispseg.fused import graphs


@contextlib.contextmanager
def fails_at_its_end(graph, pool, stream):
    """Like a capture that an error in its body has spoilt."""
    try:
        yield
    finally:
        raise RuntimeError("operation failed due to a previous error during capture")


def test_the_cause_of_a_failed_capture_is_told_and_its_memory_not_used_again(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", fails_at_its_end)
    recorder = graphs.Recorder()
    recorder.pool = (0, 1)

    def function(x):
        raise ValueError("the cause")

    with pytest.raises(ValueError, match="the cause"):
        recorder.capture(None, function, (torch.ones(1),))
    assert recorder.pool is None


def test_a_capture_that_fails_by_itself_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", fails_at_its_end)
    with pytest.raises(RuntimeError, match="previous error"):
        graphs.Recorder().capture(None, lambda x: (x,), (torch.ones(1),))


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
        graphs.rehearse(function, ())
    assert during == ["error"]
    assert allowed[-1] == "default"


class Counting(graphs.Recorder):
    """Stands in for a GPU: a recording that calls the function on what is in place."""

    def __init__(self):
        super().__init__()
        self.recorded = []

    def record(self, function, example):
        if example[0].shape[-1] == 13:
            raise RuntimeError("cannot be recorded")
        self.recorded.append(tuple(example[0].shape))
        inputs = tuple(x.clone() for x in example)
        recording = graphs.Recording(None, function, inputs, ())
        recording.run = lambda: function(*inputs)
        return recording


@pytest.fixture
def no_gpu(monkeypatch):
    class Stream:
        def wait_event(self, event):
            pass

    stream = Stream()
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "Event", lambda: type("Event", (), {"record": lambda self, stream: None})())


def test_a_shape_is_recorded_once_until_it_is_the_oldest(no_gpu):
    recorder = Counting()
    cache = graphs.GraphCache(lambda x: 2 * x, shapes=2, recorder=recorder)
    for width in (3, 4, 3, 5, 3, 4):
        x = torch.randn(1, width)
        assert torch.equal(cache(x), 2 * x)
    assert recorded_widths(recorder) == [3, 4, 5, 4]  # 4 was older than 3 when 5 came


def recorded_widths(recorder):
    return [shape[-1] for shape in recorder.recorded]


def test_dtypes_and_layouts_are_recorded_apart(no_gpu):
    recorder = Counting()
    cache = graphs.GraphCache(lambda x: 2 * x, recorder=recorder)
    for x in (torch.randn(2, 3), torch.randn(3, 2).t(), torch.randn(2, 3).double()):
        assert torch.equal(cache(x), 2 * x)
    assert len(recorder.recorded) == 3


def test_what_cannot_be_recorded_is_computed(no_gpu):
    recorder = Counting()
    cache = graphs.GraphCache(lambda x: 2 * x, recorder=recorder)
    for _ in range(2):
        x = torch.randn(1, 13)
        assert torch.equal(cache(x), 2 * x)
    assert recorder.recorded == []
    assert list(cache.recordings.values()) == [None]


def test_outputs_belong_to_the_caller(no_gpu):
    output = torch.zeros(1)
    cache = graphs.GraphCache(lambda x: output.copy_(x), recorder=Counting())
    first = cache(torch.ones(1))
    cache(torch.full((1,), 2.0))
    assert torch.equal(first, torch.ones(1))


def test_inference_mode_may_come_and_go(no_gpu):
    cache = graphs.GraphCache(lambda x: 2 * x, recorder=Counting())
    with torch.inference_mode():
        assert torch.equal(cache(torch.ones(1)), torch.full((1,), 2.0))
    with torch.no_grad():
        assert torch.equal(cache(torch.ones(1)), torch.full((1,), 2.0))


def test_a_recording_keeps_what_its_function_holds(monkeypatch):
    """A graph reads weights by their address; were they freed with the function, it would read anything."""

    class Stream:
        def wait_stream(self, other):
            pass

    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *args, **kwargs: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(graphs, "rehearse", lambda function, inputs: None)
    network = torch.nn.Linear(2, 2)
    weight = weakref.ref(network.weight)
    recording = graphs.Recorder().record(lambda x, network=network: (network(x),), (torch.ones(1, 2),))
    del network
    gc.collect()
    assert weight() is not None
    del recording
    gc.collect()
    assert weight() is None
