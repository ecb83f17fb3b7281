"""The fitted temperature against scipy's minimiser, and that it mends overconfidence."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from crispseg.metrics import CalibrationCounts, TemperatureFit


def overconfident(factor, size=200, classes=4, seed=0):
    """Labels drawn from the softmax of honest logits; the logits given are `factor` times those."""
    draws = torch.Generator().manual_seed(seed)
    honest = 1.5 * torch.randn(classes, size, size, generator=draws)
    chances = honest.softmax(0).flatten(1).T
    labels = torch.multinomial(chances, 1, generator=draws).view(size, size)
    return honest * factor, labels


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.5])
def test_the_least_cross_entropy_is_found(factor):
    logits, labels = overconfident(factor)
    labels[:10] = 255
    fit = TemperatureFit(stride=1)
    fit.update(logits, labels)

    def loss(log_t):
        return float(torch.nn.functional.cross_entropy(logits[None] / 2**log_t, labels[None], ignore_index=255))

    exact = 2 ** minimize_scalar(loss, bounds=(-2, 2), method="bounded").x
    assert fit.best() == pytest.approx(exact, rel=0.01)
    assert fit.best() == pytest.approx(factor, rel=0.06)


def test_confidences_hold_after_scaling():
    logits, labels = overconfident(2.5)
    fit = TemperatureFit()
    fit.update(logits, labels)
    before, after = (
        CalibrationCounts().update((logits / t).softmax(0)[None], labels[None]).ece() for t in (1.0, fit.best())
    )
    assert before > 0.1 and after < 0.02


def test_sums_add_up_and_nothing_means_one():
    logits, labels = overconfident(2.0, size=64)
    whole, parts = TemperatureFit(stride=1), TemperatureFit(stride=1)
    whole.update(logits, labels)
    parts.update(logits[:, :20], labels[:20])
    parts.update(logits[:, 20:], labels[20:])
    np.testing.assert_allclose(whole.sums["loss"], parts.sums["loss"], rtol=1e-5)
    empty = TemperatureFit()
    empty.update(logits, torch.full_like(labels, 255))
    assert empty.best() == 1.0
