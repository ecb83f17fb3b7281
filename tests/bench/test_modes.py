"""The ways to run a function, as far as they can be followed without a GPU; test_gpu.py has the rest."""

import torch

from crispseg.bench import modes


def test_plain_runs_what_is_in_place():
    runner = modes.MODES["eager"](lambda compile_it: lambda x: (x + 1,), (torch.zeros(2),), modes.Recorder())
    runner.place((torch.ones(2),))
    assert torch.equal(runner.run()[0], torch.full((2,), 2.0))
    assert 16 <= runner.peak_bytes < 100  # two numbers in and out, and scalars


def test_compiled_asks_for_the_compiled_function():
    asked = []

    def make(compile_it):
        asked.append(compile_it)
        return lambda x: (x,)

    for mode in ("eager", "compiled", "fused"):
        modes.MODES[mode](make, (torch.zeros(1),), modes.Recorder())
    assert asked == [False, True, False]


def test_what_torchs_profiler_logs_about_itself_is_not_shown(capfd):
    """Written by C++ straight to the file descriptor, at every start and stop."""
    modes.Plain(lambda x: (x + 1,), (torch.zeros(2),))
    assert "USDT" not in "".join(capfd.readouterr())
