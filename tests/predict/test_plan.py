import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crispseg.errors import UserError
from crispseg.predict.plan import ONE, make_axis, make_plan, trimmed


@st.composite
def axes(draw):
    tile = draw(st.integers(1, 70))
    overlap = draw(st.integers(0, tile - 1))
    near = [tile - 1, tile, tile + 1, 2 * tile - overlap, 2 * tile - overlap + 1]
    length = draw(st.one_of(st.integers(1, 400), st.sampled_from([n for n in near if n >= 1])))
    return make_axis(length, tile, overlap)


@given(axes())
def test_weights_of_every_pixel_sum_to_one(axis):
    total = np.zeros(axis.length, int)
    for start, weights in zip(axis.starts, axis.weights, strict=True):
        for offset, weight in enumerate(weights):
            assert weight >= 0
            if 0 <= start + offset < axis.length:
                total[start + offset] += weight
    assert (total == ONE).all()


@given(axes())
def test_tiles_overlap_enough_and_reach_beyond_the_scene_by_the_trim(axis):
    trim = trimmed(axis.overlap)
    assert axis.starts[0] == -trim
    assert axis.starts[-1] + axis.tile >= axis.length + trim
    for one, other in zip(axis.starts, axis.starts[1:], strict=False):
        assert 0 < other - one <= axis.tile - axis.overlap


@given(axes())
def test_the_trim_of_a_tile_has_no_weight(axis):
    trim = trimmed(axis.overlap)
    if trim:
        assert not axis.weights[:, :trim].any()
        assert not axis.weights[:, -trim:].any()


@given(axes())
def test_finished_pixels_are_each_pixel_once_and_touched_by_no_later_tile(axis):
    pixels = []
    for k in range(len(axis.starts)):
        first, last = axis.finished(k)
        pixels += range(first, last)
        later = axis.starts[k + 1 :]
        assert all(last <= max(0, start) for start in later)
        touching = [j for j in range(k + 1) if axis.starts[j] + axis.tile > max(first, axis.starts[k])]
        assert axis.first_touching(k) == touching[0]
    assert pixels == list(range(axis.length))


@pytest.mark.parametrize(("tile", "overlap"), [(512, 128), (64, 21), (64, 32), (32, 1)])
def test_weights_are_a_raised_cosine(tile, overlap):
    """Two tiles that overlap by just so much: half a wave leads from the one to the other, within the trim."""
    trim = trimmed(overlap)
    axis = make_axis(2 * tile - overlap - 2 * trim, tile, overlap)
    assert len(axis.starts) == 2
    places = np.arange(overlap - 2 * trim) + 0.5
    ramp = 0.5 - 0.5 * np.cos(np.pi * places / (overlap - 2 * trim))
    expected = np.r_[np.zeros(trim), ramp, np.ones(tile - overlap)]
    for seen in (axis.weights[1], axis.weights[0][::-1]):
        np.testing.assert_allclose(seen[: len(expected)] / ONE, expected, atol=1 / ONE)


def test_tiles_overlap_by_a_quarter_unless_told():
    plan = make_plan(900, 500, 512)
    assert plan.rows.overlap == plan.cols.overlap == 128


def test_a_scene_smaller_than_a_tile_gets_one_small_tile():
    plan = make_plan(1, 300, 1024, 256)
    assert plan.tiles == 1
    assert (plan.rows.tile, plan.cols.tile) == (160, 448)


@pytest.mark.parametrize(
    ("height", "width", "tile", "overlap", "words"),
    [
        (0, 5, 8, 0, "no pixels"),
        (5, 0, 8, 0, "no pixels"),
        (5, 5, 0, 0, "tile size"),
        (5, 5, 8, 8, "overlap"),
        (5, 5, 8, -1, "overlap"),
    ],
)
def test_impossible_plans_are_explained(height, width, tile, overlap, words):
    with pytest.raises(UserError, match=words):
        make_plan(height, width, tile, overlap)
