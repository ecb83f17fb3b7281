import numpy as np
import pytest
from PIL import Image

from crispseg.raster.resample import ResampledSource
from crispseg.raster.source import ArraySource, Window


@pytest.mark.parametrize("size", [(40, 60), (13, 17), (71, 100), (31, 47), (1, 1)])
def test_resampling_is_pillows_bilinear(size):
    image = np.random.default_rng(0).uniform(0, 200, (31, 47)).astype(np.float32)
    source = ResampledSource(ArraySource(image, (0.0,)), *size, (0.0,))
    expected = Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR)
    pixels = source.read(Window(0, 0, *size))
    np.testing.assert_allclose(pixels.values[0], np.asarray(expected), atol=1e-3)
    assert pixels.present.all()


def test_a_pixel_does_not_depend_on_its_window():
    image = np.random.default_rng(1).integers(0, 255, (50, 50, 2), np.uint8)
    source = ResampledSource(ArraySource(image, (0.0, 0.0)), 33, 81, (0.0, 0.0))
    whole = source.read(Window(0, 0, 33, 81)).values
    for window in (Window(0, 0, 5, 7), Window(11, 23, 22, 40), Window(32, 80, 1, 1)):
        part = source.read(window).values
        rows, cols = slice(window.top, window.top + window.height), slice(window.left, window.left + window.width)
        np.testing.assert_array_equal(part, whole[:, rows, cols])


def test_missing_pixels_do_not_bleed():
    image = np.full((20, 20), 100, np.uint8)
    present = np.ones((20, 20), bool)
    present[:, :10] = False
    source = ResampledSource(ArraySource(image, (7.0,), present), 10, 10, (7.0,))
    pixels = source.read(Window(0, 0, 10, 10))
    np.testing.assert_array_equal(pixels.present, np.repeat([[False] * 5 + [True] * 5], 10, axis=0))
    np.testing.assert_allclose(pixels.values[0], np.where(pixels.present, 100.0, 7.0), rtol=1e-6)
