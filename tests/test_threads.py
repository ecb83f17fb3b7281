"""OpenMP waits without spinning, unless the user says otherwise or torch came first."""

import os
import subprocess
import sys

import pytest
import torch

from crispseg.threads import one_thread


def policy(code, **environment):
    bare = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    code = f"import os; {code}; print(os.environ.get('OMP_WAIT_POLICY'))"
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env={**bare, **environment}, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("code", ["import crispseg", "import crispseg.cli.main", "import crispseg.models.registry"])
def test_the_policy_is_there_before_torch(code):
    assert policy(code) == "passive"


def test_what_the_user_set_stays_and_what_is_too_late_is_left():
    assert policy("import crispseg", OMP_WAIT_POLICY="active") == "active"
    assert policy("import sys; sys.modules['torch'] = sys; import crispseg") == "None"


def test_one_thread_for_a_while():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
