"""Labels as pictures: outlines between classes."""

import numpy as np

from crispseg.data.drawing import outline, paint

PALETTE = ((200, 100, 40), (0, 0, 250))


def test_outlines_darken_the_last_pixel_before_another_class():
    mask = np.array([[0, 0, 1], [0, 0, 1], [0, 1, 1]], np.uint8)
    lines = np.array([[0, 1, 0], [0, 1, 0], [1, 0, 0]], bool)
    lines[1, 1] = True  # both its neighbours are others
    painted = paint(mask, PALETTE)
    shown = outline(painted, mask)
    assert np.array_equal(shown[~lines], painted[~lines]) and np.array_equal(shown[lines], painted[lines] // 2)


def test_one_class_has_no_outline():
    mask = np.zeros((4, 5), np.uint8)
    assert np.array_equal(outline(paint(mask, PALETTE), mask), paint(mask, PALETTE))
