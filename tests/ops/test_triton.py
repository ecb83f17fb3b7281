"""The Triton kernels, through Triton's interpreter in processes of their own; on a GPU they run in `test_gpu.py`."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from crispseg.ops import BACKENDS, Rule, ncssd
from tests.ops.test_ncssd import make_gates, make_inputs

HERE = Path(__file__).parent


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("name", ["interpreted_triton.py", "interpreted_gated.py"])
def test_through_the_interpreter(name):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / name)],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_a_cpu_takes_the_torch_path():
    inputs, values = make_inputs(dtype=torch.float32)
    gates = make_gates(values)
    assert torch.equal(ncssd(*inputs, gates), BACKENDS["torch"](*inputs, gates, Rule()))
