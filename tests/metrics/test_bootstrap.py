"""The paired bootstrap against resampling in a loop, exact enumeration, and models that are known to be equal."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from crispseg.errors import UserError
from crispseg.metrics import BoundaryCounts, ConfusionMatrix, compare_bf, compare_miou, paired_bootstrap


def matrices(seed, images=12, classes=3, skill=4):
    counts = np.random.default_rng(seed).integers(0, 20, (images, classes, classes))
    counts[:, range(classes), range(classes)] *= skill
    return counts


def miou(counts):
    matrix = ConfusionMatrix(counts.shape[-1])
    matrix.counts.copy_(torch.from_numpy(counts))
    return matrix.scores().miou


def test_identical_models_differ_by_nothing():
    counts = matrices(0)
    result = compare_miou(counts, counts, resamples=500)
    assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)
    assert result.a == result.b == miou(counts.sum(0))


def test_against_resampling_image_by_image():
    a, b = matrices(1), matrices(2, skill=6)
    result = compare_miou(a, b, resamples=300, confidence=0.9, seed=5)
    drawn = np.random.default_rng(5).multinomial(12, np.full(12, 1 / 12), size=300)
    differences = []
    for times in drawn:
        chosen = [image for image in range(12) for _ in range(times[image])]
        totals = [sum(model[image] for image in chosen) for model in (a, b)]
        differences.append(miou(totals[1]) - miou(totals[0]))
    assert result.difference == pytest.approx(miou(b.sum(0)) - miou(a.sum(0)))
    np.testing.assert_allclose((result.low, result.high), np.quantile(differences, [0.05, 0.95]))
    worse, better = sum(d <= 0 for d in differences), sum(d >= 0 for d in differences)
    assert result.p_value == pytest.approx(min(1, 2 * (min(worse, better) + 1) / 301))


def test_two_images_have_three_outcomes():
    a = np.array([[[5, 5], [5, 5]], [[9, 1], [1, 9]]])
    b = np.array([[[6, 4], [4, 6]], [[10, 0], [0, 10]]])
    outcomes = [miou(2 * b[i]) - miou(2 * a[i]) for i in range(2)]
    result = compare_miou(a, b, resamples=2000)
    assert (result.low, result.high) == (pytest.approx(min(outcomes)), pytest.approx(max(outcomes)))
    assert result.p_value == pytest.approx(2 / 2001)  # B is better in every one of them


def test_a_clear_difference_is_clear_and_chance_is_not():
    a = matrices(3, images=40)
    better = a.copy()
    better[:, range(3), range(3)] += 20
    clear = compare_miou(a, better, resamples=1000)
    assert clear.low > 0 and clear.p_value < 0.01
    chance = compare_miou(a, a[np.random.default_rng(0).permutation(40)], resamples=1000)
    assert chance.difference == pytest.approx(0) and chance.low < 0 < chance.high and chance.p_value > 0.5


def test_seeded_and_mirrored():
    a, b = matrices(4), matrices(5)
    one, again, other = (compare_miou(a, b, resamples=1500, seed=s) for s in (7, 7, 8))
    assert one == again and one != other
    back = compare_miou(b, a, resamples=1500, seed=7)
    assert (back.difference, back.p_value) == (pytest.approx(-one.difference), one.p_value)
    assert (back.low, back.high) == (pytest.approx(-one.high), pytest.approx(-one.low))


def test_the_mean_is_that_of_the_protocol():
    a, b = matrices(6), matrices(7)
    matrix = ConfusionMatrix(3)
    matrix.counts.copy_(torch.from_numpy(a.sum(0)))
    assert compare_miou(a, b, scored=[0, 1], resamples=9).a == matrix.scores(scored=[0, 1]).miou
    assert compare_miou(a, b, ignored=[2], resamples=9).a == matrix.scores(ignored=[2]).miou


def test_bf_from_the_sums_of_each_image():
    generator = np.random.default_rng(0)
    target = np.kron(generator.integers(0, 3, (6, 4, 4)), np.ones((1, 5, 5), int))
    sharp, blurred = np.roll(target, 1, axis=2), np.roll(target, 3, axis=2)
    parts, totals = [], []
    for prediction in (blurred, sharp):
        total = BoundaryCounts(3, tolerance=1)
        parts.append(torch.stack([total.update(p, t).contours for p, t in zip(prediction, target, strict=True)]))
        totals.append(total.scores().mbf)
    result = compare_bf(*parts, resamples=500)
    assert (result.a, result.b) == (pytest.approx(totals[0]), pytest.approx(totals[1]))
    assert result.low > 0 and result.p_value < 0.05
    assert compare_bf(parts[0], parts[0], resamples=50).p_value == 1


def test_draws_without_a_scored_class_are_left_out():
    counts = np.zeros((2, 2, 2), int)
    counts[0, 0, 0] = 4  # the second image is all ignored: drawing it twice gives no score
    result = compare_miou(counts, counts, resamples=400)
    assert 0 < result.resamples < 400 and result.p_value == 1
    empty = compare_miou(0 * counts, 0 * counts, resamples=10)
    assert math.isnan(empty.low) and empty.resamples == 0
    assert [empty.to_dict()[name] for name in ("difference", "low", "high", "p_value")] == [None] * 4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: compare_miou(matrices(0), matrices(0, images=5)), "score both on the same images"),
        (lambda: compare_miou(matrices(0, images=1), matrices(0, images=1)), "at least two"),
        (lambda: compare_miou(matrices(0)[0], matrices(0)[0]), "expected confusion matrices"),
        (lambda: compare_bf(matrices(0), matrices(0)), "expected contour sums"),
        (lambda: compare_miou(matrices(0), matrices(0), confidence=95), "between 0 and 1"),
        (lambda: compare_miou(matrices(0), matrices(0), scored=[3]), "does not exist"),
    ],
)
def test_mistakes_are_named(call, words):
    with pytest.raises(UserError, match=words):
        call()


def test_any_score_of_sums():
    a, b = np.arange(6.0), np.arange(6.0) + 2
    result = paired_bootstrap(a, b, lambda sums: sums / 6, resamples=100)
    assert (result.difference, result.low, result.high) == tuple(pytest.approx(2) for _ in range(3))
