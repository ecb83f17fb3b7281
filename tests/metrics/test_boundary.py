"""Boundary scores against loops over pairs of pixels, scipy distances, and drawings with known answers."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from crispseg.errors import UserError
from crispseg.metrics import BoundaryCounts, boundary_counts

IGNORE = 255
radii = st.sampled_from([1, 2**0.5, 2, 5**0.5, 3])


def distance(mask):
    """Euclidean distance of each pixel to the nearest pixel of `mask`; infinite where there is none."""
    return ndimage.distance_transform_edt(~mask) if mask.any() else np.full(mask.shape, np.inf)


def contour_of(labels, c, seen):
    """By the definition, in a loop: pixels of class c with a seen 4-neighbour of another class."""
    found = np.zeros(labels.shape, bool)
    for y, x in zip(*np.nonzero((labels == c) & seen), strict=True):
        for ny, nx in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            inside = 0 <= ny < labels.shape[0] and 0 <= nx < labels.shape[1]
            if inside and seen[ny, nx] and labels[ny, nx] != c:
                found[y, x] = True
    return found


def expected_sums(prediction, target, num_classes, tolerance, width, hidden):
    """The definitions of docs/reference/metrics.md by distances. `hidden` pixels are not judged; their labels are
    used only where `target` shows them, so the same sums come out whatever lies under them."""
    seen = target != IGNORE
    sure = distance(hidden)
    contours, bands = np.zeros((num_classes, 4), int), np.zeros((num_classes, 3), int)
    in_band = np.zeros(target.shape, bool)
    for c in range(num_classes):
        t, p = (contour_of(labels, c, seen) for labels in (target, prediction))
        judged = sure > tolerance + 1 + 1e-9
        contours[c] = [
            (t & judged & (distance(p) <= tolerance + 1e-9)).sum(),
            (t & judged).sum(),
            (p & judged & (distance(t) <= tolerance + 1e-9)).sum(),
            (p & judged).sum(),
        ]
        t, p = (
            (labels == c) & seen & (distance((labels != c) & seen) <= width + 1e-9) for labels in (target, prediction)
        )
        judged = sure > width + 1e-9
        bands[c] = [(t & p & judged).sum(), (t & judged).sum(), (p & judged).sum()]
        in_band |= t
    band = np.zeros((num_classes, num_classes), int)
    np.add.at(band, (target[in_band], prediction[in_band]), 1)
    return contours, bands, band


@st.composite
def cases(draw, max_side=14, ignored=True):
    """Blocks of a few classes as truth; the same, shifted and speckled, as prediction; a few hidden pixels."""
    num_classes = draw(st.sampled_from([1, 2, 3, 5, 8, 9, 11]))
    height, width = draw(st.tuples(st.integers(1, max_side), st.integers(1, max_side)))
    block, shift = draw(st.integers(1, 5)), draw(st.tuples(st.integers(-3, 3), st.integers(-3, 3)))
    speckle, hole = draw(st.sampled_from([0, 0.05, 0.5])), draw(st.sampled_from([0, 0.01, 0.05]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    palette = generator.permutation(num_classes)[:3]  # few in one picture, among them ids of a second byte plane
    coarse = generator.choice(palette, (height // block + 1, width // block + 1))
    target = np.kron(coarse, np.ones((block, block), int))[:height, :width].astype(np.uint8)
    noise = generator.random(target.shape) < speckle
    prediction = np.where(noise, generator.choice(palette, target.shape), np.roll(target, shift, (0, 1)))
    hidden = (generator.random(target.shape) < hole) & ignored
    return prediction.astype(np.uint8), target, num_classes, hidden


def assert_sums(found, expected):
    for tensor, array in zip((found.contours, found.bands, found.band), expected, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)


@settings(max_examples=600)
@given(cases(), radii, radii)
def test_sums_follow_the_definitions(case, tolerance, width):
    prediction, full, num_classes, hidden = case
    target = np.where(hidden, IGNORE, full)
    found = boundary_counts(prediction, target, num_classes, tolerance, width)
    assert_sums(found, expected_sums(prediction, target, num_classes, tolerance, width, hidden))


@settings(max_examples=400)
@given(cases(), radii, radii, st.data())
def test_what_lies_under_ignored_pixels_never_matters(case, tolerance, width, data):
    """BF and boundary IoU are those of the fully labelled map at the judged pixels, whatever is drawn under the
    ignored ones, in truth or prediction; the band's scores do not look at the prediction there."""
    prediction, full, num_classes, hidden = case
    target = np.where(hidden, IGNORE, full)
    found = boundary_counts(prediction, target, num_classes, tolerance, width)
    contours, bands, _ = expected_sums(prediction, full, num_classes, tolerance, width, hidden)
    np.testing.assert_array_equal(found.contours.numpy(), contours)
    np.testing.assert_array_equal(found.bands.numpy(), bands)
    other = prediction.copy()
    other[hidden] = data.draw(st.integers(0, 255))
    changed = boundary_counts(other, target, num_classes, tolerance, width)
    for name, tensor in found.sums.items():
        assert torch.equal(tensor, changed.sums[name])


@settings(max_examples=40)
@given(cases(max_side=6, ignored=False), st.integers(0, 3))
def test_matches_against_a_loop_over_pairs_of_pixels(case, tolerance):
    prediction, target, num_classes, _ = case
    seen = np.ones(target.shape, bool)
    found = boundary_counts(prediction, target, num_classes, tolerance).contours
    for c in range(num_classes):
        true, predicted = (
            list(zip(*np.nonzero(contour_of(labels, c, seen)), strict=True)) for labels in (target, prediction)
        )
        matched = [
            sum(any((y - v) ** 2 + (x - u) ** 2 <= tolerance**2 for v, u in others) for y, x in pixels)
            for pixels, others in ((true, predicted), (predicted, true))
        ]
        assert found[c].tolist() == [matched[0], len(true), matched[1], len(predicted)]


@settings(max_examples=30)
@given(cases(), radii)
def test_strips_count_as_the_whole_does(case, tolerance):
    prediction, full, num_classes, hidden = case
    target = np.where(hidden, IGNORE, full)
    whole = boundary_counts(prediction, target, num_classes, tolerance)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crispseg.metrics.boundary._STRIP", 1)  # strips as thin as their halo
        strips = boundary_counts(prediction, target, num_classes, tolerance)
    for name, tensor in whole.sums.items():
        assert torch.equal(tensor, strips.sums[name])


@settings(max_examples=30)
@given(cases(), radii)
def test_turning_the_image_or_swapping_the_maps(case, tolerance):
    prediction, target, num_classes, _ = case
    found = boundary_counts(prediction, target, num_classes, tolerance)
    turned = boundary_counts(np.rot90(prediction), np.rot90(target), num_classes, tolerance)
    for name, tensor in found.sums.items():
        assert torch.equal(tensor, turned.sums[name])
    swapped = boundary_counts(target, prediction, num_classes, tolerance)
    assert torch.equal(swapped.contours, found.contours[:, [2, 3, 0, 1]])  # precision <-> recall
    assert torch.equal(swapped.bands, found.bands[:, [0, 2, 1]])


@given(cases(), radii)
def test_a_perfect_map_scores_one(case, tolerance):
    _, target, num_classes, _ = case
    scores = boundary_counts(target, target, num_classes, tolerance).scores()
    values = [scores.mbf, scores.mbiou, scores.band_miou, scores.band_accuracy]
    if len(np.unique(target)) == 1:
        assert all(map(math.isnan, values))  # no boundary, no score
    else:
        assert values == [1, 1, 1, 1]


def halves(left=0, right=1, size=12, cut=6):
    labels = np.full((size, size), left)
    labels[:, cut:] = right
    return labels


def square(first, size=10, side=40, background=0, inside=1):
    labels = np.full((side, side), background)
    labels[first : first + size, first : first + size] = inside
    return labels


def test_two_classes_meeting_is_a_boundary_of_both():
    target = halves(3, 5)
    counts = boundary_counts(target, target, 6, tolerance=0, width=2)
    assert counts.contours[:, 1].tolist() == [0, 0, 0, 12, 0, 12]  # one column on each side; none at the border
    assert counts.bands[:, 1].tolist() == [0, 0, 0, 24, 0, 24]  # inner bands two pixels wide
    assert counts.band.sum() == 48


def test_three_classes_meeting_at_a_point():
    target = np.zeros((8, 8), int)
    target[4:, :4], target[4:, 4:] = 1, 2
    counts = boundary_counts(target, target, 3, tolerance=0, width=1)
    # class 0 lies on top, a row of 8; 1 and 2 have a row of 4 and a column of 4 sharing their corner
    assert counts.contours[:, 1].tolist() == [8, 7, 7]
    assert counts.bands[:, 1].tolist() == [8, 7, 7]
    # swapping the two lower classes leaves class 0 perfect and every other contour pixel with the wrong class
    swapped = np.choose(target, [0, 2, 1])
    scores = boundary_counts(swapped, target, 3, tolerance=0, width=1).scores()
    # 1 and 2 meet in a column: the true one of class 1 is column 3, the predicted one column 4
    np.testing.assert_allclose(scores.bf, [1, 0, 0])
    np.testing.assert_allclose(scores.biou, [1, 0, 0])
    near = boundary_counts(swapped, target, 3, tolerance=1).scores()
    # within one pixel the four of the column are found, and the ends of the rows, which are in that column
    np.testing.assert_allclose(near.bf, [1, 4 / 7, 4 / 7])


def test_the_image_border_is_no_boundary():
    target = np.zeros((9, 9), int)
    target[:, :3] = 1
    counts = boundary_counts(target, target, 2, tolerance=0, width=3)
    assert counts.contours[:, 1].tolist() == [9, 9]
    assert counts.bands[:, 1].tolist() == [27, 27]


@pytest.mark.parametrize("shift", [1, 2, 3, 5])
def test_a_square_shifted_by_the_tolerance_is_found_and_by_more_is_not(shift):
    target, prediction = square(15), square(15)
    prediction = np.roll(prediction, shift, axis=1)
    within = boundary_counts(prediction, target, 2, tolerance=shift).scores()
    assert within.bf[1] == 1 and within.bf[0] == 1
    below = boundary_counts(prediction, target, 2, tolerance=shift - 1).scores()
    # the two shifted sides are lost, save what lies near the top and bottom sides that slid along themselves:
    # the square's contour is 36 pixels; a lost side keeps the pixels whose distance to a row is small enough
    contour = contour_of(target, 1, np.ones_like(target, bool))
    other = contour_of(prediction, 1, np.ones_like(target, bool))
    kept = (contour & (distance(other) <= shift - 1)).sum()
    assert below.recall[1] == pytest.approx(kept / 36) and kept < 36


def test_straight_edges_shifted():
    target, prediction = halves(cut=6), halves(cut=9)
    assert boundary_counts(prediction, target, 2, tolerance=3).scores().mbf == 1
    assert boundary_counts(prediction, target, 2, tolerance=2).scores().mbf == 0
    scores = boundary_counts(prediction, target, 2, width=4).scores()
    # class 0: truth columns 2-5, prediction 5-8; class 1: truth 6-9, prediction 9-11 (the image ends)
    np.testing.assert_allclose(scores.biou, [1 / 7, 1 / 6])
    # band columns 2-9: 0 is right in 2-5, 1 in 9; 6-8 are false 0
    assert scores.band_accuracy == pytest.approx(5 / 8)
    np.testing.assert_allclose(scores.band_iou, [4 / 7, 1 / 4])


def test_a_one_pixel_object():
    target = np.zeros((11, 11), int)
    target[5, 5] = 1
    found = boundary_counts(target, target, 2, width=1)
    assert found.contours[:, 1].tolist() == [4, 1]
    assert found.bands[:, 1].tolist() == [4, 1]
    missed = boundary_counts(np.zeros_like(target), target, 2).scores()
    np.testing.assert_allclose(missed.bf, [0, 0])  # both classes have a true contour and no predicted one
    moved = np.zeros_like(target)
    moved[5, 8] = 1
    np.testing.assert_allclose(boundary_counts(moved, target, 2, tolerance=3).scores().bf, [1, 1])
    assert boundary_counts(moved, target, 2, tolerance=2.9).scores().bf[1] == 0


def test_an_ignored_stripe_makes_no_boundary_and_hides_the_one_under_it():
    target = halves(size=30, cut=15)
    target[:, 13:17] = IGNORE
    for prediction in (halves(size=30, cut=15), halves(size=30, cut=12), halves(size=30, cut=18)):
        counts = boundary_counts(prediction, target, 2, tolerance=3)
        assert counts.contours.sum() == 0, "a contour within 4 px of the stripe may belong to what it hides"
        assert math.isnan(counts.scores().mbf)
        assert counts.band.sum() == 0
    far = boundary_counts(halves(size=30, cut=6), target, 2, tolerance=3).scores()
    assert far.precision.tolist() == [0, 0]  # a contour far from the stripe is known to be false


def test_a_boundary_beside_an_ignored_hole_counts_again_at_tolerance_plus_two():
    target = halves(size=40, cut=20)
    target[20, 20] = IGNORE
    counts = boundary_counts(halves(size=40, cut=20), target, 2, tolerance=3)
    assert counts.contours[1].tolist() == [31, 31, 31, 31]  # column 20: rows 16 to 24 lie within 4 px of the hole
    assert counts.contours[0].tolist() == [33, 33, 33, 33]  # column 19: 17 to 23, since row 16 is sqrt(17) away


def test_an_all_ignored_image_and_an_empty_class():
    nothing = boundary_counts(np.zeros((5, 5), int), np.full((5, 5), IGNORE), 3)
    assert all(int(tensor.sum()) == 0 for tensor in nothing.sums.values())
    assert math.isnan(nothing.scores().mbf) and math.isnan(nothing.scores().band_accuracy)
    scores = boundary_counts(halves(), halves(), 3).scores()
    np.testing.assert_array_equal(scores.bf, [1, 1, np.nan])
    assert scores.mbf == 1
    invented = halves()
    invented[0, 0] = 2
    assert boundary_counts(invented, halves(), 3).scores().bf[2] == 0  # not in the truth, but predicted


def test_global_sums_and_per_image_parts():
    generator = np.random.default_rng(0)
    maps = generator.integers(0, 3, (4, 2, 9, 9))
    total = BoundaryCounts(3, tolerance=1, width=2)
    parts = [total.update(prediction, target) for prediction, target in maps]
    batch = BoundaryCounts(3, tolerance=1, width=2)
    batch.update(torch.from_numpy(maps[:, 0]), torch.from_numpy(maps[:, 1]))
    added = parts[0] + parts[1] + parts[2] + parts[3]
    for name in total.sums:
        assert torch.equal(total.sums[name], batch.sums[name])
        assert torch.equal(total.sums[name], added.sums[name])
    matched, all_true, found, all_predicted = total.contours.double().T
    precision, recall = found / all_predicted, matched / all_true
    np.testing.assert_allclose(total.scores().bf, 2 * precision * recall / (precision + recall))


def test_the_mean_is_over_the_scored_classes_and_names_carry_the_pixels():
    counts = boundary_counts(halves(cut=9), halves(cut=6), 3, tolerance=2.5, width=4)
    scores = counts.scores(scored=[0, 2])
    assert scores.mbiou == pytest.approx(1 / 7)
    written = json.loads(json.dumps(scores.to_dict(["road", "tree", "car"]), allow_nan=False))
    assert {"BF@2.5px", "mBF", "BIoU@4px", "band mIoU@4px", "band accuracy@4px"} <= set(written)
    assert written["mBF"] == written["BF@2.5px"] == 0
    assert written["BIoU"]["car"] is None and written["scored"] == ["road", "car"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: boundary_counts(np.full((3, 3), 4), np.zeros((3, 3), int), 3), "class id 4 in the prediction"),
        (lambda: boundary_counts(np.zeros((3, 3), int), np.full((3, 3), 3), 3), "class id 3 in the label map"),
        (lambda: boundary_counts(np.zeros((3, 3), int), np.zeros((3, 4), int), 3), "must be of one size"),
        (lambda: boundary_counts(np.zeros(3, int), np.zeros(3, int), 3), "not 1 dimensions"),
        (lambda: BoundaryCounts(3, tolerance=-1), "at least 0"),
        (lambda: BoundaryCounts(3, width=0.5), "at least 1"),
    ],
)
def test_mistakes_are_named(call, words):
    with pytest.raises(UserError, match=words):
        call()


def test_every_pair_of_class_ids_meets_in_the_same_way():
    for a, b in itertools.permutations(range(10), 2):
        found = boundary_counts(halves(a, b, cut=5), halves(a, b, cut=6), 10, tolerance=1, width=2)
        assert found.contours.sum(0).tolist() == [24, 24, 24, 24]
        assert found.contours[a].tolist() == found.contours[b].tolist() == [12, 12, 12, 12]
        # a: columns 4-5 against 3-4, b: 6-7 against 5-6
        assert found.bands[a].tolist() == found.bands[b].tolist() == [12, 24, 24]
