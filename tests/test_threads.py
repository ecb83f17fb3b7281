"""OpenMP sleeps beside other programs, else spins shortly, unless the user says otherwise or torch came first."""

import os
import subprocess
import sys
import time

import pytest
import torch

from crispseg import threads
from crispseg.threads import one_thread


def policy(code, **environment):
    bare = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    code = f"import os; {code}; print(os.environ.get('OMP_WAIT_POLICY'), os.environ.get('GOMP_SPINCOUNT'))"
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env={**bare, **environment}, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("code", ["import crispseg", "import crispseg.cli.main", "import crispseg.models.registry"])
def test_the_policy_is_there_before_torch(code):
    assert policy(code) in ("passive 0", f"passive {threads._SPINS}")


def test_what_the_user_set_stays_and_what_is_too_late_is_left():
    assert policy("import crispseg", OMP_WAIT_POLICY="active") == "active None"
    assert policy("import crispseg", GOMP_SPINCOUNT="7") == "None 7"
    assert policy("import sys; sys.modules['torch'] = sys; import crispseg") == "None None"


def test_threads_sleep_where_others_are_at_work(monkeypatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 2)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 2)
    assert [threads.spins(others) for others in (0, 1, 5)] == [threads._SPINS, 0, 0]
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 8)  # on a larger machine there is room for both
    assert [threads.spins(others) for others in (6, 7)] == [threads._SPINS, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="nobody counts them elsewhere")
def test_a_busy_neighbour_is_seen():
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() + 1)]
    try:
        deadline = time.monotonic() + 20
        while threads.others_running() < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert threads.others_running() >= 1
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_what_cannot_be_counted_is_nobody(monkeypatch):
    def nothing(pause):
        raise FileNotFoundError

    monkeypatch.setattr(threads, "_running_now", nothing)
    assert threads.others_running() == 0


def test_one_thread_for_a_while():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
