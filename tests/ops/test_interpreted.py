"""Kernels without a GPU: each of the files `interpreted*.py` is a test session of its own, run through Triton's
interpreter, which must be switched on before Triton is imported."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path.relative_to(ROOT) for path in ROOT.glob("tests/**/interpreted*.py"))


def test_there_are_such_files():
    assert FILES


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("file", FILES, ids=str)
def test_through_the_interpreter(file):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
