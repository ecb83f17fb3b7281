"""Kernels compiled for GPUs that are not there: what `crisp train` and `crisp predict` launch must compile for them,
and what a kernel takes of the shared memory must fit where nothing else is said."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227}  # KB that a program can have, as in ahead_of_time.py
LAPTOP = 86


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
    too_large = {name: size for name, size in found["compiled"].items() if size > SHARED[capability] * 1024}
    assert not too_large


def named(found):
    return {name.rpartition(".")[2] for name in found["compiled"]}


def test_training_the_largest_model_on_a_laptop(tmp_path):
    """The operators with gradients say that they need no room: their kernels fit at 512 px as well."""
    found = compiled(tmp_path, LAPTOP, "train", "--model", "crisp_base", "--of", "ops.train.", "ops.nc_ssd.")
    assert found["launched"] > 100
    assert {"_best_kernel", "_gelu_gradients", "read_out"} <= named(found)
    check(found, LAPTOP)


def test_training_in_float32_on_a_laptop(tmp_path):
    check(compiled(tmp_path, LAPTOP, "train", "--precision", "fp32", "--of", "ops.nc_ssd."), LAPTOP)


def test_predicting_with_the_largest_model_on_a_laptop(tmp_path):
    """Those that nearly fill its shared memory."""
    words = ["--model", "crisp_base", "--precision", "fp16", "--of", "infer.matching", "maps.normalize"]
    found = compiled(tmp_path, LAPTOP, "predict", *words)
    assert {"_cosines_kernel", "_norm_relu_add_kernel"} <= named(found)
    check(found, LAPTOP)


def test_kernels_for_many_pixels(tmp_path):
    """They take the place of others from 16,384 pixels on, and need a data centre's GPU."""
    found = compiled(tmp_path, 90, "predict", "--model", "crisp_tiny", "--of", "infer.block")
    assert {"_conv_norm_project_kernel", "_conv_norm_mlp_kernel"} <= named(found)
    check(found, 90)


@pytest.mark.parametrize("capability", [LAPTOP, *(pytest.param(x, marks=pytest.mark.slow) for x in SHARED if x != 86)])
def test_soft_matching(tmp_path, capability):
    found = compiled(
        tmp_path, capability, "train", "--options", '{"matching": "lse"}', "--of", "train.matching_kernels"
    )
    assert named(found) == {"_best_kernel", "_best_gradients"}
    check(found, capability)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["crisp_nano", "crisp_base"])
@pytest.mark.parametrize("capability", SHARED)
def test_all_that_training_launches(tmp_path, capability, model):
    check(compiled(tmp_path, capability, "train", "--model", model), capability)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["crisp_tiny", "crisp_base"])
@pytest.mark.parametrize("capability", SHARED)
def test_all_that_predicting_launches(tmp_path, capability, model):
    found = compiled(tmp_path, capability, "predict", "--model", model)
    check(found, capability)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("work", ["train", "predict"])
def test_other_precisions(tmp_path, work, precision):
    check(compiled(tmp_path, LAPTOP, work, "--model", "crisp_nano", "--precision", precision), LAPTOP)


@pytest.mark.slow
@pytest.mark.parametrize("work", ["train", "predict"])
def test_small_images(tmp_path, work):
    """Maps so small that other tiles are taken."""
    check(compiled(tmp_path, LAPTOP, work, "--model", "crisp_nano", "--size", "64", "--batch", "1"), LAPTOP)


def test_launches_are_listed(tmp_path):
    words = [sys.executable, "-m", "tests.ops.launches", "crisp_nano", "predict", "--size", "64"]
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    lines = subprocess.run(
        words, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(lines) > 100
    assert lines[0].startswith("_image_kernel (8, 2) BANDS=3 ")
    assert "image=torch.float32(2, 3, 64, 64)(12288, 4096, 64, 1)" in lines[0]
