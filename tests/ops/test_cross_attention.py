"""Attention against its definition, head by head, in float64.

The kernels run through Triton's interpreter in a process of their own, and on a GPU in `test_head_gpu.py`."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crispseg.ops.cross_attention import attention

ROOT = Path(__file__).parents[2]


def head_by_head(heads):
    """The definition, a function of q, k and v."""

    def attend(q, k, v):
        parts = zip(*(x.chunk(heads, -1) for x in (q, k, v)), strict=True)
        return torch.cat(
            [torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, -1) @ v for q, k, v in parts], dim=-1
        )

    return attend


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 5))
def test_attention(queries, keys, heads, width):
    q = torch.randn(2, queries, heads * width, dtype=torch.float64)
    k, v = torch.randn(2, 2, keys, heads * width, dtype=torch.float64)
    torch.testing.assert_close(attention(q, k, v, heads), head_by_head(heads)(q, k, v))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_through_the_interpreter():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/ops/interpreted_head.py"],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
