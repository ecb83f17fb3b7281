"""Errors along boundaries and away from them, against distances by brute force and counts by loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from crispseg.analysis.mistakes import Mistakes, boundary_band
from tests.evaluate.toy import counted, labels, spoilt


def brute_band(truth: np.ndarray, width: float) -> np.ndarray:
    places = [(y, x) for y, x in np.ndindex(*truth.shape) if truth[y, x] != 255]
    band = np.zeros(truth.shape, bool)
    for y, x in places:
        band[y, x] = any((y - v) ** 2 + (x - u) ** 2 <= width**2 for v, u in places if truth[v, u] != truth[y, x])
    return band


@pytest.fixture
def pair() -> tuple[np.ndarray, np.ndarray]:
    truth = labels(4, (19, 23))
    predicted = spoilt(truth, 5)
    truth[3:6, 2:9] = 255
    return truth, predicted


@pytest.mark.parametrize("width", [1, 2.5, 3])
def test_band_and_interior(pair: tuple[np.ndarray, np.ndarray], width: float) -> None:
    truth, predicted = pair
    band = boundary_band(torch.from_numpy(truth), 3, width)
    np.testing.assert_array_equal(band.numpy(), brute_band(truth, width))
    found = Mistakes.none(3)
    for _ in range(2):  # images add up
        found.count(torch.from_numpy(predicted), torch.from_numpy(truth), band)
    inside = band.numpy()
    np.testing.assert_array_equal(found.band, 2 * counted(predicted[inside], truth[inside]))
    np.testing.assert_array_equal(found.interior, 2 * counted(predicted[~inside], truth[~inside]))


def test_figures(pair: tuple[np.ndarray, np.ndarray]) -> None:
    truth, predicted = pair
    found = Mistakes.none(3)
    band = boundary_band(torch.from_numpy(truth), 3, 2)
    found.count(torch.from_numpy(predicted), torch.from_numpy(truth), band)
    valid, wrong, near = truth != 255, (truth != predicted) & (truth != 255), band.numpy()
    figures = found.figures((0, 1, 2))
    iou = [
        ((truth == c) & (predicted == c)).sum() / (valid & ((truth == c) | (predicted == c))).sum() for c in range(3)
    ]
    assert figures == pytest.approx(
        {
            "mIoU": np.mean(iou),
            "OA": 1 - wrong.sum() / valid.sum(),
            "wrong in the band": (wrong & near).sum() / near.sum(),
            "wrong in the interior": (wrong & ~near).sum() / (valid & ~near).sum(),
            "pixels in the band": near.sum() / valid.sum(),
            "errors in the band": (wrong & near).sum() / wrong.sum(),
        }
    )


def test_largest_come_first_and_right_ones_never() -> None:
    band, interior = np.array([[9, 1, 0], [0, 9, 2], [5, 0, 9]]), np.array([[9, 7, 0], [0, 9, 0], [0, 1, 9]])
    assert Mistakes(band, interior).largest() == [(0, 1, 8, 1), (2, 0, 5, 5), (1, 2, 2, 2), (2, 1, 1, 0)]
    assert Mistakes(band, interior).largest(1) == [(0, 1, 8, 1)]
    assert Mistakes.none(2).largest() == []
    assert all(np.isnan(value) for value in Mistakes.none(2).figures((0, 1)).values())
