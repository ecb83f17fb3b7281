"""The confusion matrix against a loop over pixels, its scores against fractions worked out by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from crispseg.errors import UserError
from crispseg.metrics import ConfusionMatrix, confusion_counts
from crispseg.metrics.confusion import class_scores

C = 4
shapes = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=7)


@st.composite
def label_maps(draw, num_classes=C):
    shape = draw(shapes)
    target = draw(hnp.arrays(np.uint8, shape, elements=st.sampled_from([*range(num_classes), 255])))
    prediction = draw(hnp.arrays(np.uint8, shape, elements=st.integers(0, num_classes - 1)))
    return prediction, target


def loop(prediction, target, num_classes, ignore=255):
    counts = np.zeros((num_classes, num_classes), dtype=np.int64)
    for p, t in zip(prediction.flat, target.flat, strict=True):
        if t != ignore:
            counts[t, p] += 1
    return counts


def loop_scores(counts, c):
    hit = counts[c, c]
    missed, false = counts[c].sum() - hit, counts[:, c].sum() - hit
    if hit + missed + false == 0:
        return [math.nan] * 4
    precision = hit / (hit + false) if hit + false else 0.0
    recall = hit / (hit + missed) if hit + missed else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return [hit / (hit + missed + false), f1, precision, recall]


@given(label_maps())
def test_counts_are_those_of_a_loop_over_pixels(maps):
    prediction, target = maps
    np.testing.assert_array_equal(confusion_counts(prediction, target, C), loop(prediction, target, C))


@given(label_maps())
def test_scores_are_those_of_the_textbook(maps):
    matrix = ConfusionMatrix(C)
    matrix.update(*maps)
    scores, counts = matrix.scores(), matrix.counts.numpy()
    expected = np.array([loop_scores(counts, c) for c in range(C)])
    found = np.stack([scores.iou, scores.f1, scores.precision, scores.recall], axis=1)
    np.testing.assert_allclose(found, expected)
    present = [c for c in range(C) if not math.isnan(expected[c, 0])]
    if present:
        assert scores.miou == pytest.approx(np.mean(expected[present, 0]))
        assert scores.mf1 == pytest.approx(np.mean(expected[present, 1]))
        assert scores.oa == pytest.approx(np.trace(counts) / counts.sum())
    else:
        assert math.isnan(scores.miou) and math.isnan(scores.mf1) and math.isnan(scores.oa)


@given(label_maps(), label_maps())
def test_two_images_add_up_in_any_way(first, second):
    together, one, other = ConfusionMatrix(C), ConfusionMatrix(C), ConfusionMatrix(C)
    part = together.update(*first)
    together.update(*second)
    one.update(*first)
    other.update(*second)
    assert torch.equal(part.counts, one.counts)
    assert torch.equal((one + other).counts, together.counts)
    assert torch.equal((other + one).counts, together.counts)
    assert one.counts.sum() + other.counts.sum() == sum((t != 255).sum() for _, t in (first, second))


@settings(max_examples=30)
@given(label_maps(), st.sampled_from([np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, ">i2"]))
def test_any_integer_type_and_either_library(maps, dtype):
    prediction, target = (x.astype(dtype) for x in maps)
    expected = loop(*maps, C)
    np.testing.assert_array_equal(confusion_counts(prediction, target, C), expected)
    if dtype != ">i2":
        tensors = torch.from_numpy(prediction), torch.from_numpy(target)
        np.testing.assert_array_equal(confusion_counts(*tensors, C), expected)


def test_long_maps_are_counted_in_chunks(monkeypatch):
    monkeypatch.setattr("crispseg.metrics.confusion._CHUNK", 7)
    generator = np.random.default_rng(0)
    prediction, target = generator.integers(0, C, (2, 9, 11))
    np.testing.assert_array_equal(confusion_counts(prediction, target, C), loop(prediction, target, C))


def test_read_only_and_reversed_arrays_count_without_a_warning(recwarn):
    target = np.arange(12, dtype=np.uint8).reshape(3, 4) % C
    prediction = target[::-1, ::-1]
    target.setflags(write=False)
    np.testing.assert_array_equal(confusion_counts(prediction, target, C), loop(prediction, target, C))
    assert not recwarn.list


def test_known_scores():
    matrix = ConfusionMatrix(2)
    matrix.update(np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 255, 0]))
    scores = matrix.scores()
    # class 0: 2 right, 1 missed, 1 false; class 1: 1 right, 1 missed, 1 false
    np.testing.assert_allclose(scores.iou, [2 / 4, 1 / 3])
    np.testing.assert_allclose(scores.f1, [4 / 6, 2 / 4])
    assert scores.oa == pytest.approx(3 / 5)
    assert scores.miou == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_clutter_left_out_of_the_mean_or_ignored_altogether():
    target = np.array([0, 0, 0, 0, 1, 1, 2, 2])  # 2 is clutter
    prediction = np.array([0, 0, 0, 2, 1, 1, 0, 2])
    matrix = ConfusionMatrix(3)
    matrix.update(prediction, target)

    kept = matrix.scores(scored=[0, 1])  # the clutter pixel called 0 is a false 0, and OA sees all eight pixels
    np.testing.assert_allclose(kept.iou, [3 / 5, 1, 1 / 3])
    assert kept.miou == pytest.approx((3 / 5 + 1) / 2)
    assert kept.oa == pytest.approx(6 / 8)

    dropped = matrix.scores(ignored=[2])  # clutter pixels are gone; calling a 0 clutter is still a miss
    np.testing.assert_allclose(dropped.iou[:2], [3 / 4, 1])
    assert dropped.scored == (0, 1)
    assert matrix.counts.sum() == 8, "scores must not eat the counts"
    assert dropped.oa == pytest.approx(5 / 6)

    relabelled = ConfusionMatrix(3)
    relabelled.update(prediction, np.where(target == 2, 255, target))
    same = relabelled.scores(scored=[0, 1])
    assert (same.miou, same.mf1, same.oa) == (dropped.miou, dropped.mf1, dropped.oa)
    assert torch.equal(confusion_counts(prediction, target, 3, ignore_index=2), relabelled.counts)


def test_an_absent_class_has_no_score_and_a_false_or_missed_one_has_zero():
    matrix = ConfusionMatrix(4)
    matrix.update(np.array([0, 1, 0]), np.array([0, 0, 2]))  # 1 only predicted, 2 only true, 3 nowhere
    scores = matrix.scores()
    np.testing.assert_allclose(scores.iou, [1 / 3, 0, 0, np.nan])
    np.testing.assert_allclose(scores.precision, [1 / 2, 0, 0, np.nan])
    np.testing.assert_allclose(scores.recall, [1 / 2, 0, 0, np.nan])
    assert scores.miou == pytest.approx(1 / 9)
    assert math.isnan(matrix.scores(scored=[3]).miou)


def test_an_all_ignored_image_adds_nothing():
    matrix = ConfusionMatrix(C)
    matrix.update(np.zeros((3, 3), np.uint8), np.full((3, 3), 255, np.uint8))
    assert matrix.counts.sum() == 0
    assert math.isnan(matrix.scores().oa)


def test_whatever_is_predicted_at_ignored_pixels_is_not_looked_at():
    assert confusion_counts(np.array([0, 255, 99]), np.array([0, 255, 255]), 2).tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("prediction", "target", "words"),
    [
        ([0, 7], [0, 1], "class id 7 in the prediction"),
        ([0, 1], [0, 9], "class id 9 in the label map"),
        ([0, 1], [0, -3], "class id -3 in the label map"),
        ([0, 1, 1], [0, 1], "prediction is 3 and the label map 2"),
        ([0.0, 1.0], [0, 1], "arg-max"),
    ],
)
def test_mistakes_are_named_and_leave_the_counts_alone(prediction, target, words):
    matrix = ConfusionMatrix(3)
    with pytest.raises(UserError, match=words):
        matrix.update(np.array(prediction), np.array(target))
    assert matrix.counts.sum() == 0


def test_labels_do_not_wrap_around_in_narrow_integers():
    bytes_ = np.array([0, 255], dtype=np.uint8)
    with pytest.raises(UserError, match="class id 255"):
        confusion_counts(np.zeros(2, np.uint8), bytes_, 2, ignore_index=-1)  # 255 == -1 in bytes
    assert confusion_counts(bytes_, bytes_, 256, ignore_index=None).sum() == 2  # 256 == 0 in bytes
    assert confusion_counts(np.zeros(2, np.int8), np.array([0, -1], np.int8), 2, ignore_index=-1).sum() == 1


@pytest.mark.parametrize("arguments", [{"scored": [0, 3]}, {"ignored": [-1]}])
def test_a_class_that_does_not_exist_cannot_be_chosen(arguments):
    with pytest.raises(UserError, match="does not exist: there are 3"):
        ConfusionMatrix(3).scores(**arguments)


def test_scores_as_json_by_name_without_nan():
    matrix = ConfusionMatrix(2)
    matrix.update(np.zeros(4, int), np.zeros(4, int))
    written = json.loads(json.dumps(matrix.scores(scored=[0]).to_dict(["road", "tree"]), allow_nan=False))
    assert written["mIoU"] == written["mF1"] == written["OA"] == 1.0
    assert written["IoU"] == {"road": 1.0, "tree": None}
    assert written["scored"] == ["road"]


def test_class_scores_of_a_stack_are_those_of_each_matrix():
    counts = np.random.default_rng(1).integers(0, 5, (6, 3, 3))
    stacked = class_scores(counts, ignored=[1])
    for index, each in enumerate(counts):
        for whole, one in zip(stacked, class_scores(each, ignored=[1]), strict=True):
            np.testing.assert_array_equal(whole[index], one)
