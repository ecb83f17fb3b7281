"""Gaps of an image, against numpy's own reflection and against the scene without them."""

import numpy as np
import pytest

from crispseg.nodata import mirrored

IMAGE = np.random.default_rng(0).integers(0, 255, (3, 40, 50)).astype(np.uint8)


@pytest.mark.parametrize("margin", [(0, 20), (30, 0), (39, 0), (0, 45)])
def test_an_empty_margin_is_the_reflection_of_the_scene(margin):
    """As numpy pads it, and as the scene goes on beyond its own edges."""
    sides = ((0, 0), (margin[0],) * 2, (margin[1],) * 2)
    present = np.pad(np.ones(IMAGE.shape[1:], bool), sides[1:])
    given = np.pad(IMAGE, sides, constant_values=99)
    found = mirrored(given, present)
    assert (given[:, ~present] == 99).all(), "the caller's array is left alone"
    np.testing.assert_array_equal(found, np.pad(IMAGE, sides, mode="reflect"))


def test_a_margin_wider_than_the_scene_and_a_turned_one_hold_only_the_scene():
    """Every value is one of the scene's, none is the filler."""
    image = IMAGE // 2
    wide = np.pad(np.ones(image.shape[1:], bool), 200)
    rows, columns = np.indices((240, 250))
    turned = (np.abs(rows - columns) < 60) & (np.abs(rows + columns - 240) < 90)
    turned[100:110, 100:105] = False
    rows, columns = np.indices((60, 200))
    thin = np.abs((rows - 30) - 3 * (columns - 100)) < 2  # mirrored about it, many places never come to lie in it
    for present in (wide, turned, thin):
        values = np.full((3, *present.shape), 255, np.uint8)
        values[:, present] = image.reshape(3, -1)[:, np.arange(present.sum()) % image[0].size]
        found = mirrored(values, present)
        assert found.max() < 128
        np.testing.assert_array_equal(found[:, present], values[:, present])


def test_whole_and_empty_tiles_stay_as_they_are():
    for present in (np.ones(IMAGE.shape[1:], bool), np.zeros(IMAGE.shape[1:], bool)):
        assert mirrored(IMAGE, present) is IMAGE
