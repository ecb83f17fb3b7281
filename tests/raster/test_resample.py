import numpy as np
import pytest
from PIL import Image

from crispseg.raster.resample import ResampledSource, classes_over
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


def test_class_ids_come_back_to_the_size_of_the_image():
    """The most of what Pillow's filter makes of every class by itself."""
    classes = np.random.default_rng(2).integers(0, 4, (37, 53)).repeat(3, axis=0).repeat(3, axis=1).astype(np.uint8)
    for height, width in ((300, 400), (60, 90), (111, 159), (1, 1)):
        image = ArraySource(np.zeros((height, width), np.uint8), (0.0,))
        layers = [
            Image.fromarray((classes == k).astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
            for k in range(4)
        ]
        weights = np.stack([np.asarray(layer) for layer in layers])
        found = classes_over(image, classes)
        chosen = np.take_along_axis(weights, found[None].astype(np.int64), axis=0)[0]
        np.testing.assert_allclose(chosen, weights.max(axis=0), atol=1e-5)
        assert (height, width) != (111, 159) or np.array_equal(found, classes)


def test_class_ids_stay_out_of_what_has_no_data():
    present = np.ones((40, 40), bool)
    present[:, :7] = False
    image = ArraySource(np.zeros((40, 40), np.uint8), (0.0,), present)
    classes = np.full((20, 20), 2, np.uint8)
    classes[:, :4] = 255
    found = classes_over(image, classes)
    assert (found[:, :7] == 255).all() and (found[:, 7:] == 2).all(), "the pixel at the edge takes its neighbour's"
    classes[:, :10] = 255
    assert (classes_over(image, classes)[:, 7:18] == 255).all(), "where the map says nothing, neither do we"
