"""Kernels compiled for GPUs that are not there: what `crisp train` and `crisp predict` launch must compile for them,
and what a kernel takes of the shared memory must fit where nothing else is said."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227}  # KB that a program can have, as in ahead_of_time.py

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
    pytest.mark.skipif(sys.platform != "linux", reason="Triton's compilers are for Linux"),
]


def compiled(tmp_path, capability, work, *options):
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.ahead_of_time", str(capability), work, *options],
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def check(found, capability):
    assert not found["failed"]
    assert found["compiled"]
    assert {name: size for name, size in found["compiled"].items() if size > SHARED[capability] * 1024} == {}


def test_some_for_a_laptop(tmp_path):
    found = compiled(tmp_path, 86, "train", "--most", "6")
    assert found["launched"] > 40
    check(found, 86)


@pytest.mark.parametrize("capability", [86, *(pytest.param(x, marks=pytest.mark.slow) for x in SHARED if x != 86)])
def test_soft_matching(tmp_path, capability):
    found = compiled(
        tmp_path, capability, "train", "--options", '{"matching": "lse"}', "--of", "train.matching_kernels"
    )
    assert {name.rpartition(".")[2] for name in found["compiled"]} == {"_best_kernel", "_best_gradients"}
    check(found, capability)


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED)
def test_all_that_training_launches(tmp_path, capability):
    check(compiled(tmp_path, capability, "train"), capability)


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED)
def test_all_that_predicting_launches(tmp_path, capability):
    check(compiled(tmp_path, capability, "predict", "--model", "crisp_tiny"), capability)
