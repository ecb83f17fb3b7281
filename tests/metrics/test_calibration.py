"""Calibration against a loop over pixels and cases with known answers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from crispseg.errors import UserError
from crispseg.metrics import CalibrationCounts

unit = st.floats(0, 1, width=32)
pixels = st.lists(st.tuples(unit, st.booleans()), max_size=40)


def loop_ece(pairs, bins):
    """Expected calibration error by sorting pixels into lists."""
    held = [[] for _ in range(bins)]
    for confidence, right in pairs:
        held[min(int(confidence * bins), bins - 1)].append((confidence, right))
    if not pairs:
        return math.nan
    error = 0.0
    for inside in filter(None, held):
        confidence = math.fsum(c for c, _ in inside) / len(inside)
        accuracy = sum(r for _, r in inside) / len(inside)
        error += len(inside) / len(pairs) * abs(accuracy - confidence)
    return error


def maps(pairs):
    return np.array([c for c, _ in pairs]), np.array([r for _, r in pairs], dtype=bool)


@given(pixels, st.integers(1, 20))
def test_ece_is_that_of_a_loop(pairs, bins):
    counts = CalibrationCounts(bins)
    counts.update_maps(*maps(pairs))
    assert counts.ece() == pytest.approx(loop_ece(pairs, bins), nan_ok=True)


@given(pixels, pixels)
def test_images_add_up(first, second):
    together, one, other = CalibrationCounts(), CalibrationCounts(), CalibrationCounts()
    together.update_maps(*maps(first + second))
    part = one.update_maps(*maps(first))
    other.update_maps(*maps(second))
    assert torch.equal(part.sums["count"], one.sums["count"])
    for name, tensor in (one + other).sums.items():
        torch.testing.assert_close(tensor, together.sums[name])


@given(hnp.arrays(np.float32, (2, 3, 4, 5), elements=st.floats(-4, 4, width=32)), st.integers(0, 99))
def test_probabilities_with_ignored_pixels(logits, seed):
    probabilities = torch.from_numpy(logits).softmax(1)
    target = np.random.default_rng(seed).choice([0, 1, 2, 255], (2, 4, 5))
    counts = CalibrationCounts(10)
    counts.update(probabilities, target)
    pairs = []
    for b, y, x in zip(*np.nonzero(target != 255), strict=True):
        column = probabilities[b, :, y, x].tolist()
        best = column.index(max(column))
        pairs.append((column[best], best == target[b, y, x]))
    assert counts.ece() == pytest.approx(loop_ece(pairs, 10), nan_ok=True)
    assert counts.sums["count"].sum() == len(pairs)


def test_a_known_curve():
    counts = CalibrationCounts(bins=4)
    counts.update_maps(np.array([0.3, 0.4, 0.9, 0.8, 1.0, 0.0]), np.array([True, False, True, True, False, False]))
    curve = counts.reliability()
    np.testing.assert_allclose(curve.edges, [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_array_equal(curve.count, [1, 2, 0, 3])
    np.testing.assert_allclose(curve.confidence, [0, 0.35, np.nan, 0.9])
    np.testing.assert_allclose(curve.accuracy, [0, 0.5, np.nan, 2 / 3])
    assert curve.ece == pytest.approx((2 * 0.15 + 3 * (0.9 - 2 / 3)) / 6)
    written = json.loads(json.dumps(curve.to_dict(), allow_nan=False))
    assert written["accuracy"][2] is None and written["ECE"] == pytest.approx(curve.ece)


def test_sure_and_right_is_calibrated_sure_and_wrong_is_not():
    target = torch.zeros(1, 6, 6, dtype=torch.uint8)
    probabilities = torch.zeros(1, 2, 6, 6)
    probabilities[:, 0] = 1
    right, wrong = CalibrationCounts(), CalibrationCounts()
    right.update(probabilities, target)
    wrong.update(probabilities, 1 - target)
    assert right.ece() == 0 and wrong.ece() == 1


def test_honest_confidences_have_a_small_error():
    generator = np.random.default_rng(0)
    confidence = generator.random(200_000)
    counts = CalibrationCounts()
    counts.update_maps(confidence, generator.random(200_000) < confidence)
    assert counts.ece() < 0.01


def test_an_all_ignored_image_has_no_error_to_speak_of():
    counts = CalibrationCounts()
    counts.update(torch.full((1, 2, 3, 3), 0.5), np.full((1, 3, 3), 255))
    assert math.isnan(counts.ece())
    assert counts.reliability().to_dict()["ECE"] is None


def test_half_precision_softmax_that_misses_one_is_taken():
    counts = CalibrationCounts()
    counts.update_maps(torch.tensor([1.0005], dtype=torch.float32), torch.tensor([True]))
    assert counts.sums["count"][-1] == 1 and counts.ece() == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.update_maps(np.array([7.5]), np.array([True])), "softmax"),
        (lambda c: c.update_maps(np.array([np.nan]), np.array([True])), "between 0 and 1"),
        (lambda c: c.update_maps(np.array([0.5]), np.array([True, False])), "differ in size"),
        (lambda c: c.update(torch.ones(1, 2, 3, 3), np.zeros((1, 3, 4), int)), "do not fit labels"),
        (lambda c: c.update(torch.ones(1, 2, 3, 3) / 2, np.full((1, 3, 3), 2)), "class id 2 in the label map"),
        (lambda c: CalibrationCounts(0), "at least one bin"),
    ],
)
def test_mistakes_are_named_and_leave_the_counts_alone(call, words):
    counts = CalibrationCounts()
    with pytest.raises(UserError, match=words):
        call(counts)
    assert counts.sums["count"].sum() == 0
