import numpy as np
import pytest
import torch

import crispseg
from crispseg.models.base import ModelInfo
from crispseg.predict.bands import Pace, finished_bands
from crispseg.predict.evaluate import CERTAIN, Evaluator
from crispseg.predict.plan import make_plan
from crispseg.predict.work import Settings
from crispseg.raster.products import Products
from crispseg.raster.source import ArraySource
from tests.predict.standins import StandIn

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def maps(device, batch_size):
    image = np.random.default_rng(0).integers(0, 36, (300, 270, 3)).astype(np.uint8)
    image[:40, :50] = 0
    plan = make_plan(300, 270, 64, 16)
    model = StandIn(reach=2)
    evaluator = Evaluator(model, torch.device(device))
    source = ArraySource(image, model.info.mean, image.any(axis=2))
    bands = list(finished_bands(source, evaluator, plan, range(plan.strips), Products(True, True), Pace(batch_size)))
    return (
        np.concatenate([band.classes for band in bands]),
        np.concatenate([band.probabilities for band in bands], axis=1),
    )


@pytest.mark.parametrize("batch_size", [None, 1, 7])
def test_the_gpu_makes_the_cpus_map(batch_size):
    (classes, probabilities), (other_classes, other) = maps("cpu", 1), maps("cuda", batch_size)
    assert np.abs(probabilities.astype(int) - other).max() <= 1
    assert (classes != other_classes).mean() < 1e-3, "only where two classes tie"


def test_the_same_run_gives_the_same_bytes():
    for one, other in zip(maps("cuda", 4), maps("cuda", 4), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("precision", "most"), [("float32", 0.002), ("bfloat16", 0.05)])
def test_the_fused_model_gives_the_cpus_probabilities(precision, most):
    torch.manual_seed(0)
    model = crispseg.create_model("crisp_nano", num_classes=4)
    model.info = ModelInfo(mean=(90.0,) * 3, std=(40.0,) * 3)
    tiles = list(np.random.default_rng(0).integers(0, 255, (3, 3, 96, 80)).astype(np.uint8))
    expected = Evaluator(model, torch.device("cpu"))(tiles).float() / CERTAIN
    found = Evaluator(model, torch.device("cuda"), precision=precision)(tiles).cpu().float() / CERTAIN
    assert (found - expected).abs().max() < most


def test_auto_is_bfloat16_where_the_gpu_multiplies_in_it():
    model = crispseg.create_model("crisp_nano", num_classes=4)
    half = torch.cuda.get_device_capability() >= (8, 0)
    assert Settings(device="cuda").settled(model).precision == ("bfloat16" if half else "float32")
    assert Settings(device="cuda").settled(StandIn()).precision == "float32"
