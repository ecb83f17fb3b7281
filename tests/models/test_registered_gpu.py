"""Every registered model trains, evaluates and runs fused on a GPU: each precision, recorded and kernel by kernel."""

import functools
import gc
import os
import random
import re
import time

import pytest
import torch

import crispseg
from crispseg.models.base import ModelInfo, SegmentationModel
from crispseg.models.registry import entries, missing_requirement
from tests.models.registered import PRECISIONS, check_evaluation, two_steps

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SIZES = [(1, 224), (4, 224), (1, 509), (4, 509)]  # batch, side; a model is built once for all
ALL_MODELS = "CRISPSEG_TEST_ALL_MODELS"  # when set, a model whose requirement is not installed fails


def patient(test):
    """Several processes share the GPU: a model that finds no room waits until others have given theirs back."""

    @functools.wraps(test)
    def waiting(*args, **kwargs):
        for last in [False] * 8 + [True]:
            try:
                test(*args, **kwargs)
                break
            except RuntimeError as problem:
                if last or not re.search("out of memory|ALLOC_FAILED", str(problem)):
                    raise
            gc.collect()
            torch.cuda.empty_cache()
            time.sleep(random.uniform(3, 9))  # not all at once

    return waiting


@pytest.fixture(autouse=True)
def _memory_given_back():
    yield
    gc.collect()
    torch.cuda.empty_cache()


def make(name: str) -> SegmentationModel:
    entry = entries()[name]
    if install := missing_requirement(entry):
        (pytest.fail if os.environ.get(ALL_MODELS) else pytest.skip)(f"needs {entry.requires}: {install}")
    with torch.device("cuda"):  # drawing a large model's weights on one core takes seconds
        model = crispseg.create_model(name, num_classes=5)
    model.info = ModelInfo(mean=(100.0,) * 3, std=(50.0,) * 3)
    return model


@pytest.mark.parametrize("graph", [True, False], ids=["recorded", "kernel by kernel"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", crispseg.list_models())
@patient
def test_trains(name, precision, graph):
    model = make(name).cuda()
    for size in SIZES:
        two_steps(model, precision, graph, *size)
        gc.collect()  # the graph, before the next one is recorded
        if graph and precision == "fp16":  # it is not recorded: this is the other test
            break


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", crispseg.list_models())
@patient
def test_evaluates_and_fuses(name, precision):
    check_evaluation(make(name).cuda().eval(), precision, SIZES)
