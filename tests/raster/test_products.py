"""Bands on their way from an accelerator: masked as they should be, in order, and their errors are told."""

import numpy as np
import pytest
import torch

from crispseg.errors import UserError
from crispseg.predict.bands import _finished
from crispseg.raster.products import NODATA, OpenBand, Products

GPU = torch.device("cuda")  # of which only the name is used


ALL = Products(confidence=True, probabilities=True)


def open_band(index, products=ALL, labels=None):
    rng = np.random.default_rng(index)
    labels = rng.integers(0, 3, (4, 5)) if labels is None else labels
    maps = (labels, rng.integers(0, 250, (4, 5)), rng.integers(0, 250, (3, 4, 5)))
    present = rng.random((4, 5)) < 0.7
    return OpenBand(index, 4 * index, [torch.from_numpy(x.astype(np.uint8)) for x in maps], present, products)


def test_what_is_absent_is_masked_and_the_rest_kept():
    for index in range(5):
        before = [x.numpy().copy() for x in open_band(index).maps]
        given = open_band(index)
        band = given.finish()
        for values, kept in zip((band.classes, band.confidence, band.probabilities), before, strict=True):
            np.testing.assert_array_equal(values, np.where(given.present, kept, NODATA))


def test_only_what_was_asked_for_comes():
    band = open_band(0, Products(confidence=True)).finish()
    assert band.confidence is not None and band.probabilities is None
    band = open_band(0, Products(probabilities=True)).finish()
    assert band.confidence is None and band.probabilities is not None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_bands_are_finished_in_order_wherever_they_come_from(device):
    found = list(_finished(iter([open_band(k) for k in range(5)]), torch.device(device)))
    assert [(band.index, band.top) for band in found] == [(k, 4 * k) for k in range(5)]
    for band in found:
        np.testing.assert_array_equal(band.classes, open_band(band.index).finish().classes)


def test_on_a_gpu_the_next_band_is_begun_before_one_is_waited_for():
    begun = []

    def bands():
        for k in range(3):
            begun.append(k)
            yield open_band(k)

    stream = _finished(bands(), GPU)
    assert next(stream).index == 0
    assert begun == [0, 1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_scores_that_are_not_finite_are_told_from_there_too(device):
    unscored = np.full((4, 5), NODATA)
    with pytest.raises(UserError, match="no finite scores near row 4"):
        list(_finished(iter([open_band(0), open_band(1, labels=unscored)]), torch.device(device)))
