"""Every registered model trains, evaluates and runs fused on a GPU: each precision, recorded and kernel by kernel."""

import functools
import gc
import math
import random
import re
import time

import pytest
import torch

import crispseg
from crispseg.models.base import ModelInfo, SegmentationModel
from crispseg.models.registry import entries, missing_requirement
from crispseg.train.config import config_from
from crispseg.train.distributed import Processes
from crispseg.train.step import Part, Stepper
from tests.conftest import relative_error

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SIZES = [(1, 224), (4, 509)]  # batch, side
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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
    if missing_requirement(entry):
        pytest.skip(f"needs {entry.requires}")
    with torch.device("cuda"):  # drawing a large model's weights on one core takes seconds
        model = crispseg.create_model(name, num_classes=5)
    model.info = ModelInfo(mean=(100.0,) * 3, std=(50.0,) * 3)
    return model


@pytest.mark.parametrize("graph", [True, False], ids=["recorded", "kernel by kernel"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", crispseg.list_models())
@patient
def test_trains(name, precision, graph):
    for batch, side in SIZES:
        values = {
            "graph": graph,
            "precision": precision,
            "optimizer": {"lr": 1e-4},
            "schedule": {"steps": 3, "warmup": 0},
        }
        stepper = Stepper(make(name), config_from(values), Processes(torch.device("cuda")))
        images = 255 * torch.rand(batch, 3, side, side)
        part = Part(images, torch.randint(0, 5, (batch, side, side)), [""] * batch)
        before = [parameter.detach().clone() for parameter in stepper.model.parameters()]
        for step in range(2):
            said = stepper.step(step, [part])
            assert math.isfinite(said["loss"].item())
        if precision != "fp16":  # whose scaler may pass over the first steps
            moved = sum(not torch.equal(x, y) for x, y in zip(before, stepper.model.parameters(), strict=True))
            assert moved > 0.8 * len(before)  # a block may be dropped; D2LS has parts that no loss reaches


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", crispseg.list_models())
@patient
def test_evaluates_and_fuses(name, precision):
    model = make(name).cuda().eval()
    for batch, side in SIZES:
        image = torch.randn(batch, 3, side, side, device="cuda")
        with torch.no_grad():
            truth = model(image)
        for graphs in (True, False):
            found = model.fused(PRECISIONS[precision], graphs=graphs)(image)
            assert found.shape == truth.shape
            assert found.isfinite().all()
            assert relative_error(found, truth) < (1e-3 if precision == "fp32" else 0.3)
