import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crispseg.errors import UserError
from crispseg.raster.source import ArraySource, Window, fill_gaps, read_reflected, reflected


@given(st.integers(1, 30), st.integers(0, 80), st.integers(0, 80))
def test_reflection_is_numpys(length, before, after):
    expected = np.pad(np.arange(length), (before, after), mode="reflect")
    np.testing.assert_array_equal(reflected(-before, before + length + after, length), expected)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(-20, 12), st.integers(-20, 12), st.integers(1, 30))
def test_windows_beyond_the_scene_are_its_reflection(height, width, top, left, size):
    image = np.arange(height * width * 2, dtype=np.uint8).reshape(height, width, 2)
    padded = np.pad(image, ((40, 60), (40, 60), (0, 0)), mode="reflect")
    pixels = read_reflected(ArraySource(image, (0.0, 0.0)), Window(top, left, size, size + 1))
    expected = padded[top + 40 : top + 40 + size, left + 40 : left + 41 + size]
    np.testing.assert_array_equal(pixels.values, np.moveaxis(expected, 2, 0))
    assert pixels.present.all()


def test_gaps_take_the_mean_and_a_pixel_is_present_if_any_band_is():
    values = np.array([[[1.0, np.nan, np.inf]], [[2.0, 5.0, np.nan]]], np.float64)
    pixels = fill_gaps(values, np.array([[[True, True, True]], [[True, True, True]]]), (10.0, 20.0))
    np.testing.assert_array_equal(pixels.values, np.array([[[1, 10, 10]], [[2, 5, 20]]], np.float32))
    np.testing.assert_array_equal(pixels.present, [[True, True, False]])


def test_means_are_rounded_and_kept_in_range_for_whole_numbers():
    values = np.zeros((2, 1, 1), np.uint8)
    pixels = fill_gaps(values, np.zeros((2, 1, 1), bool), (99.6, 300.0))
    assert pixels.values.ravel().tolist() == [100, 255]
    assert values.max() == 0, "the caller's array is left alone"


@pytest.mark.parametrize(
    ("dtype", "working"),
    [("uint8", "uint8"), ("int16", "int16"), ("uint16", "float32"), ("int32", "float32"), ("float64", "float32")],
)
def test_values_survive_the_change_of_type(dtype, working):
    values = np.array([[[0, 1, 200]]], dtype)
    pixels = fill_gaps(values, np.ones(values.shape, bool), (0.0,))
    assert pixels.values.dtype == working
    np.testing.assert_array_equal(pixels.values, values)


def test_misfits_are_explained():
    with pytest.raises(UserError, match="2 bands and the model takes 3"):
        ArraySource(np.zeros((4, 4, 2)), (0.0,) * 3)
    with pytest.raises(UserError, match="height, width, bands"):
        ArraySource(np.zeros(4), (0.0,))
    with pytest.raises(UserError, match="mask"):
        ArraySource(np.zeros((4, 4)), (0.0,), np.ones((3, 4), bool))
    with pytest.raises(UserError, match="complex"):
        ArraySource(np.zeros((4, 4), complex), (0.0,)).read(Window(0, 0, 2, 2))
