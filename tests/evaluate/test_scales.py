"""Looking at several sizes: a mean of probabilities, nothing else."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from crispseg.data.folder import Folder
from crispseg.evaluate import Settings, evaluate
from crispseg.evaluate.scales import AtScales
from crispseg.models.base import SegmentationModel
from tests.evaluate.toy import blur_model, colour_model


@torch.no_grad()
def probabilities(model: SegmentationModel, image: torch.Tensor, *scales: float) -> torch.Tensor:
    return AtScales(model, scales)(image).softmax(1)


def test_one_scale_is_the_model_itself() -> None:
    model, image = blur_model(), torch.randn(2, 3, 21, 30)
    with torch.no_grad():
        torch.testing.assert_close(probabilities(model, image, 1.0), model(image).softmax(1))


def test_several_scales_are_the_mean_of_each() -> None:
    model, image = blur_model(), torch.randn(1, 3, 33, 47)
    scales = (0.5, 1.0, 1.25)
    each = torch.stack([probabilities(model, image, scale) for scale in scales])
    torch.testing.assert_close(probabilities(model, image, *scales), each.mean(0))
    assert each[0].shape == (1, 3, 33, 47) and not torch.allclose(each[0], each[1], atol=1e-2)


def test_the_temperature_is_that_of_each_view() -> None:
    model, image = blur_model(), torch.randn(1, 3, 33, 47)
    scales = (0.5, 1.0, 1.25)
    model.info = dataclasses.replace(model.info, temperature=0.5)
    for fused in (False, True):
        shown = [AtScales(model, which) for which in (scales, *((scale,) for scale in scales))]
        with torch.no_grad():
            logits = [(each.fused() if fused else each)(image) for each in shown]
            together, *each = [x.probabilities(z) for x, z in zip(shown, logits, strict=True)]
            torch.testing.assert_close(together, torch.stack(each).mean(0))
            torch.testing.assert_close(each[1], model.probabilities(model(image)))


def test_an_even_image_looks_alike_at_every_size() -> None:
    model = colour_model()
    image = torch.tensor([0.3, -0.2, 1.0]).view(1, 3, 1, 1).expand(1, 3, 19, 26)
    plain = probabilities(model, image, 1.0)
    torch.testing.assert_close(probabilities(model, image, 0.4, 0.75, 1.0, 2.0), plain)


def test_doubling_against_a_loop() -> None:
    """At scale 2 and back, every axis is filtered with weights that a loop can write down."""
    model, image = blur_model(), torch.randn(1, 3, 6, 5)

    def weights(size: int, to: int) -> torch.Tensor:
        matrix = torch.zeros(to, size, dtype=torch.float64)
        scale = size / to
        reach = max(scale, 1.0)
        for i in range(to):
            centre = (i + 0.5) * scale - 0.5
            row = [max(0.0, 1 - abs(j - centre) / reach) for j in range(size)]
            matrix[i] = torch.tensor(row, dtype=torch.float64) / sum(row)
        return matrix

    model = model.double()
    larger = weights(6, 12) @ image.double() @ weights(5, 10).T
    with torch.no_grad():
        expected = weights(12, 6) @ model(larger).softmax(1) @ weights(10, 5).T
    torch.testing.assert_close(probabilities(model, image.double(), 2.0).double(), expected, atol=1e-6, rtol=1e-5)


def test_scales_are_named_beside_the_score(perfect: Folder) -> None:
    chosen = Settings(tile=32, overlap=8, tta="flip", scales=(0.75, 1.0))
    evaluation = evaluate(colour_model(), perfect, settings=chosen)
    assert "TTA flip, scales 0.75 1 " in evaluation.conditions.line
    assert evaluation.headline["OA"] == pytest.approx(1.0, abs=0.1)  # only outlines may suffer
