"""The whole stream against the model applied to the whole array, and against blending in float64."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import crispseg
from crispseg.errors import UserError
from crispseg.models.base import ModelInfo
from crispseg.predict.bands import Pace, finished_bands
from crispseg.predict.evaluate import CERTAIN, Evaluator
from crispseg.predict.plan import ONE, make_plan
from crispseg.raster.products import SURE, Products
from crispseg.raster.source import ArraySource, Window, read_reflected
from tests.predict.standins import StandIn

CPU = torch.device("cpu")
NORMAL = Pace()
ALL = Products(confidence=True, probabilities=True)


def run(image, model, tile, overlap, present=None, strips=None, pace=NORMAL, products=ALL, tta="none"):
    plan = make_plan(*image.shape[:2], tile, overlap)
    source = ArraySource(image, model.info.mean, present)
    strips = range(plan.strips) if strips is None else strips
    return list(finished_bands(source, Evaluator(model, CPU, tta), plan, strips, products, pace))


def stacked(bands):
    return (
        np.concatenate([band.classes for band in bands]),
        np.concatenate([band.confidence for band in bands]),
        np.concatenate([band.probabilities for band in bands], axis=1),
    )


def random_image(height, width, seed=0, high=36):
    return np.random.default_rng(seed).integers(0, high, (height, width, 3)).astype(np.uint8)


@st.composite
def sizes(draw):
    """Height, width, tile and overlap, with tile + 1 among them; not so many tiles that the test takes long."""
    tile = draw(st.integers(1, 50))
    side = st.one_of(st.integers(1, 90), st.sampled_from([tile, tile + 1]))
    height, width, overlap = draw(side), draw(side), draw(st.integers(0, tile - 1))
    assume(make_plan(height, width, tile, overlap).tiles <= 100)
    return height, width, tile, overlap


@given(sizes(), st.integers(0, 9))
def test_a_model_that_sees_one_pixel_gives_the_same_map_for_every_tiling(size, seed):
    height, width, tile, overlap = size
    image = random_image(height, width, seed)
    classes, confidence, probabilities = stacked(run(image, StandIn(), tile, overlap))
    scores = Evaluator(StandIn(), CPU)([np.moveaxis(image, 2, 0)])[0].int().numpy()
    np.testing.assert_array_equal(classes, scores.argmax(axis=0))
    np.testing.assert_array_equal(confidence, np.floor(scores.max(axis=0) * SURE / CERTAIN + 0.5))
    np.testing.assert_array_equal(probabilities, np.floor(scores * (SURE / CERTAIN) + 0.5))


@given(sizes(), st.integers(0, 9))
def test_blending_is_the_weighted_mean_of_the_tiles(size, seed):
    height, width, tile, overlap = size
    image, model = random_image(height, width, seed), StandIn(reach=3)
    plan = make_plan(height, width, tile, overlap)
    source, evaluator = ArraySource(image, model.info.mean), Evaluator(model, CPU)
    total = np.zeros((model.num_classes, height, width))
    for top, row_weights in zip(plan.rows.starts, plan.rows.weights, strict=True):
        for left, col_weights in zip(plan.cols.starts, plan.cols.weights, strict=True):
            pixels = read_reflected(source, Window(top, left, plan.rows.tile, plan.cols.tile))
            scores = evaluator([pixels.values])[0].double().numpy() * np.outer(row_weights, col_weights)
            rows = slice(max(top, 0), min(top + plan.rows.tile, height))
            cols = slice(max(left, 0), min(left + plan.cols.tile, width))
            inside = scores[:, rows.start - top : rows.stop - top, cols.start - left : cols.stop - left]
            total[:, rows, cols] += inside
    expected = total * SURE / (CERTAIN * ONE * ONE)
    classes, confidence, probabilities = stacked(run(image, model, tile, overlap))
    assert np.abs(probabilities - expected).max() < 0.52
    assert np.abs(confidence - expected.max(axis=0)).max() < 0.52
    chosen = np.take_along_axis(expected, classes[None].astype(int), 0)[0]
    assert (expected.max(axis=0) - chosen).max() < 0.02, "only ties within rounding may go either way"


@given(sizes(), st.integers(1, 3), st.integers(0, 9))
def test_moving_the_tile_grid_moves_no_label_beyond_the_receptive_border(size, reach, seed):
    """The outer quarter of the overlap has no weight; a model that looks no further never shows the grid."""
    height, width, tile, _ = size
    tile += 8 * reach
    image = random_image(height, width, seed)
    padded = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    grey = padded.sum(axis=2).astype(float)
    side = 2 * reach + 1
    mean = np.lib.stride_tricks.sliding_window_view(grey, (side, side)).mean(axis=(2, 3))
    distance = np.abs(mean[None] - 20.0 * np.arange(5)[:, None, None])
    classes, *_ = stacked(run(image, StandIn(reach=reach), tile, 4 * reach))
    two_best = np.sort(distance, axis=0)[:2]
    clear = two_best[1] - two_best[0] > 1e-3
    np.testing.assert_array_equal(classes[clear], distance.argmin(axis=0)[clear])


@given(sizes(), st.data())
def test_a_stream_that_begins_anywhere_gives_the_same_bytes(size, data):
    height, width, tile, overlap = size
    image = random_image(height, width)
    everything = run(image, StandIn(reach=2), tile, overlap)
    first = data.draw(st.integers(0, len(everything) - 1))
    last = data.draw(st.integers(first + 1, len(everything)))
    part = run(image, StandIn(reach=2), tile, overlap, strips=range(first, last))
    assert [band.index for band in part] == list(range(first, last))
    for one, other in zip(part, everything[first:last], strict=True):
        assert one.top == other.top
        np.testing.assert_array_equal(one.classes, other.classes)
        np.testing.assert_array_equal(one.confidence, other.confidence)
        np.testing.assert_array_equal(one.probabilities, other.probabilities)


@settings(max_examples=10)
@given(st.integers(0, 99))
def test_missing_pixels_are_255_and_whole_tiles_of_them_are_never_evaluated(seed):
    random = np.random.default_rng(seed)
    image = random_image(120, 130, seed)
    present = random.random((120, 130)) > 0.3
    present[:64, :64] = False
    model, seen = StandIn(), []
    model.before = lambda x: seen.append(len(x))
    bands = run(image, model, 32, 0, present)
    classes, confidence, probabilities = stacked(bands)
    for values in (classes, confidence, *probabilities):
        np.testing.assert_array_equal(values == 255, ~present)
    assert sum(seen) == make_plan(120, 130, 32, 0).tiles - 4
    np.testing.assert_array_equal(classes[present], stacked(run(image, StandIn(), 32, 0))[0][present])


def test_nan_scores_are_an_error_not_a_class():
    model = StandIn()
    model.weight.data.fill_(float("nan"))
    with pytest.raises(UserError, match="no finite scores near row 0"):
        run(random_image(20, 20), model, 16, 4)


def nano():
    model = crispseg.create_model("crisp_nano", num_classes=4)
    model.info = ModelInfo(mean=(18.0,) * 3, std=(10.0,) * 3)
    return model


def test_bytes_do_not_depend_on_batches_threads_or_workers():
    image, model = random_image(150, 170), nano()
    runs = []
    threads = torch.get_num_threads()
    try:
        for count, pace in [(1, Pace(1, 1)), (2, Pace(3, 4)), (1, Pace(None, 2)), (2, Pace(None, 1))]:
            torch.set_num_threads(count)
            runs.append(stacked(run(image, model, 64, 16, pace=pace)))
    finally:
        torch.set_num_threads(threads)
    for other in runs[1:]:
        for one, two in zip(runs[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_flips_and_turns_of_the_scene_turn_the_map():
    image, model = random_image(96, 96), nano()
    upright = stacked(run(image, model, 96, 0, tta="d4"))[2].astype(int)
    turned = stacked(run(np.rot90(image).copy(), model, 96, 0, tta="d4"))[2].astype(int)
    assert np.abs(np.rot90(upright, axes=(1, 2)) - turned).max() <= 1


@pytest.mark.parametrize("pace", [{"batch_size": 0}, {"workers": 0}])
def test_impossible_paces_are_explained(pace):
    with pytest.raises(UserError, match="at least 1"):
        Pace(**pace)
