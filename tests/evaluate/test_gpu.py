"""The GPU gives the CPU's counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from crispseg.data.folder import Folder
from crispseg.evaluate import Settings, evaluate
from tests.evaluate.conftest import Pairs, total
from tests.evaluate.toy import blur_model, colour_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_known_scores(folder: Folder, pairs: Pairs, precision: str) -> None:
    chosen = Settings(tile=32, overlap=8, tta="d4", precision=precision)
    evaluation = evaluate(colour_model(), folder, "val", settings=chosen, device="cuda")
    np.testing.assert_array_equal(evaluation.confusion.counts.numpy(), total(pairs))


def test_a_model_that_sees_its_neighbours(folder: Folder) -> None:
    model, chosen = blur_model(), Settings(tile=32, overlap=8, scales=(1.0, 1.25))
    here, there = (evaluate(model, folder, "val", settings=chosen, device=device) for device in ("cpu", "cuda"))
    apart = (here.confusion.counts - there.confusion.counts).abs().sum()
    assert int(apart) <= 0.001 * int(here.confusion.counts.sum())
    assert there.headline["BF@3px"] == pytest.approx(here.headline["BF@3px"], abs=1e-2)
