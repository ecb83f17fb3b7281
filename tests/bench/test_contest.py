"""The order of things, the figures, and that nobody who is wrong or fails gets a time."""

import numpy as np
import pytest
import torch

from crispseg.bench import contest as contests
from crispseg.bench.contest import Entry, Racer, contest, race
from crispseg.bench.modes import MODES
from tests.bench.conftest import model_cell


class Scripted:
    """A runner that notes what it is asked."""

    peak_bytes = None

    def __init__(self, name, log, fail_at=None):
        self.name, self.log, self.fail_at, self.runs = name, log, fail_at, 0

    def place(self, inputs):
        self.log.append((self.name, inputs))

    def run(self):
        self.runs += 1
        if self.runs == self.fail_at:
            raise RuntimeError("CUDA error: something broke\nmore about it")
        return ()


def racers_of(log, *names, **fail_at):
    return [Racer(model_cell(n, None), (("x",), ("y",)), Scripted(n, log, fail_at.get(n))) for n in names]


def timed(runner):
    runner.run()
    return 1.0


def test_racers_take_turns_and_inputs_rotate():
    log = []
    racers = racers_of(log, "a", "b", "c")
    race(racers, warmup=1, repeats=3, clock=timed)
    assert [name for name, _ in log] == list("abc") * 4
    assert [inputs for name, inputs in log if name == "b"] == [("x",), ("y",), ("x",), ("y",)]
    assert [len(racer.milliseconds) for racer in racers] == [3, 3, 3]


def test_whoever_fails_drops_out_and_the_others_go_on():
    log = []
    racers = racers_of(log, "a", "b", b=2)
    race(racers, warmup=0, repeats=4, clock=timed)
    assert [name for name, _ in log] == ["a", "b", "a", "b", "a", "a"]
    assert racers[1].cell.status == "failed"
    assert racers[1].cell.reason == "RuntimeError: CUDA error: something broke"
    assert contests._timed(racers[1]).latency_ms is None
    assert contests._timed(racers[0]).latency_ms.runs == 4


def test_median_and_spread():
    times = [5.0, 1.0, 2.0, 9.0, 3.5, 2.25, 7.0]
    latency = contests._timed(Racer(model_cell(), (), Scripted("a", []), times)).latency_ms
    low, middle, high = np.percentile(times, [25, 50, 75])
    assert (latency.median, latency.iqr, latency.runs) == (pytest.approx(middle), pytest.approx(high - low), 7)
    assert contests._timed(Racer(model_cell(), (), Scripted("a", []), [4.0])).latency_ms.iqr == 0


def entry(function, truth=lambda x: (2 * x,), **fields):
    inputs = [(torch.randn(3),) for _ in range(2)]
    return Entry(
        cell=model_cell(milliseconds=None, **fields),
        make=lambda compile_it: function,
        inputs=lambda: inputs,
        truths=lambda: [truth(*given) for given in inputs],
    )


def fails(error):
    def function(x):
        raise error

    return function


def test_only_right_answers_are_timed(settings):
    stale = []

    def answers_the_first_input(x):
        stale.append(2 * x)
        return (stale[0],)

    entries = {
        "right": entry(lambda x: (2 * x,)),
        "wrong": entry(lambda x: (2.001 * x,)),
        "stale": entry(answers_the_first_input),
        "not finite": entry(lambda x: (x / 0,)),
        "broken": entry(fails(ValueError("no\nsuch thing"))),
        "large": entry(fails(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."))),
        "large on the CPU": entry(fails(RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"))),
    }
    cells = dict(zip(entries, contest(entries.values(), settings, lambda text: None), strict=True))
    statuses = {name: cell.status for name, cell in cells.items()}
    assert statuses == {
        "right": "ok",
        "wrong": "wrong",
        "stale": "wrong",
        "not finite": "wrong",
        "broken": "failed",
        "large": "out of memory",
        "large on the CPU": "out of memory",
    }
    assert [name for name, cell in cells.items() if cell.latency_ms] == ["right"]
    assert cells["wrong"].check_error == pytest.approx(5e-4, rel=0.01)
    assert cells["not finite"].check_error is None
    assert cells["broken"].reason == "ValueError: no"
    assert cells["right"].check_contrast > 0


def test_the_refused_are_not_even_run(settings):
    ran = []
    refused = Entry(
        model_cell(milliseconds=None), lambda _: ran.append, lambda: [()], lambda: [()], refused="bad operator"
    )
    (cell,) = contest([refused], settings, lambda text: None)
    assert (cell.status, cell.reason, cell.latency_ms, ran) == ("wrong", "bad operator", None, [])


def test_a_mode_that_gives_wrong_answers_gets_no_number(settings, monkeypatch):
    def wrong_mode(make, example, recorder):
        return MODES["eager"](lambda compile_it: lambda x: (make(compile_it)(x)[0] + 1,), example, recorder)

    monkeypatch.setitem(MODES, "compiled", wrong_mode)
    entries = [entry(lambda x: (2 * x,), mode=mode) for mode in ("eager", "compiled")]
    eager, wrong = contest(entries, settings, lambda text: None)
    assert eager.status == "ok"
    assert (wrong.status, wrong.latency_ms) == ("wrong", None)


def test_garbage_collection_is_off_during_the_race_only():
    import gc

    seen = []
    race([Racer(model_cell(), ((),), Scripted("a", []))], 0, 1, lambda runner: seen.append(gc.isenabled()) or 0.0)
    assert seen == [False]
    assert gc.isenabled()
