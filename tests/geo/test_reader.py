"""Rasters that differ from the usual."""

import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import rasterio
from PIL import Image
from rasterio.enums import ColorInterp

from crispseg.errors import UserError
from crispseg.geo.reader import RasterSource, grid_of, open_raster
from crispseg.geo.vectorize import vectorize_map
from crispseg.raster.source import Window
from tests.geo.rasters import UTM, random_pixels, write_raster, write_vrt

WHOLE = Window(0, 0, 40, 50)
MEANS = (7.0, 8.0, 9.0)


def read(path, bands=(1, 2, 3), window=WHOLE, **options):
    source = RasterSource(str(path), bands, MEANS[: len(bands)], **options)
    try:
        return source.read(window)
    finally:
        source.close()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "int32", "float32", "float64"])
def test_types_and_band_order(tmp_path, dtype):
    pixels = random_pixels(4, 40, 50, dtype)
    path = write_raster(tmp_path / "a.tif", pixels, **UTM)
    got = read(path, (4, 1, 2))
    np.testing.assert_array_equal(got.values, pixels[[3, 0, 1]])
    assert got.present.all()


@pytest.mark.parametrize(
    "layout",
    [{"tiled": True, "blockxsize": 16, "blockysize": 32}, {"tiled": False, "blockysize": 1}, {"interleave": "pixel"}],
)
def test_windows_of_tiled_and_striped_files(tmp_path, layout):
    pixels = random_pixels(3, 40, 50)
    path = write_raster(tmp_path / "a.tif", pixels, **layout, **UTM)
    got = read(path, window=Window(13, 17, 20, 30))
    np.testing.assert_array_equal(got.values, pixels[:, 13:33, 17:47])


def test_jpeg_compression(tmp_path):
    pixels = random_pixels(3, 40, 50, high=250)
    path = write_raster(tmp_path / "a.tif", pixels, compress="jpeg", photometric="ycbcr", **UTM)
    with rasterio.open(path) as dataset:
        np.testing.assert_array_equal(read(path).values, dataset.read())


def test_nodata_is_missing_where_all_bands_have_it_and_filled_band_by_band(tmp_path):
    pixels = random_pixels(3, 40, 50)
    pixels[:, :10] = 0
    pixels[1, 20] = 0
    got = read(write_raster(tmp_path / "a.tif", pixels, nodata=0, **UTM))
    assert not got.present[:10].any() and got.present[10:].all()
    assert (got.values[1, 20] == 8).all()
    assert (got.values[:, 5, 5] == MEANS).all()


def test_not_a_number_is_missing(tmp_path):
    pixels = random_pixels(3, 40, 50, "float32")
    pixels[:, 3, 4] = np.nan
    pixels[0, 5, 6] = np.inf
    got = read(write_raster(tmp_path / "a.tif", pixels, **UTM))
    assert (~got.present).sum() == 1 and not got.present[3, 4]
    assert np.isfinite(got.values).all()
    assert got.values[0, 5, 6] == 7


def test_alpha_is_a_mask_however_many_bands(tmp_path):
    for count in (4, 5):
        pixels = random_pixels(count, 40, 50)
        pixels[-1] = 255
        pixels[-1, :, :9] = 0
        kinds = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.undefined][: count - 1]
        path = write_raster(tmp_path / f"{count}.tif", pixels, colorinterp=[*kinds, ColorInterp.alpha], **UTM)
        got = read(path)
        np.testing.assert_array_equal(got.present[0], [False] * 9 + [True] * 41)


def test_internal_mask(tmp_path):
    mask = np.full((40, 50), True)
    mask[30:] = False
    got = read(write_raster(tmp_path / "a.tif", random_pixels(3, 40, 50), mask=mask, **UTM))
    np.testing.assert_array_equal(got.present, mask)
    assert (got.values[2, 30:] == 9).all()


def test_a_palette_image_is_its_colours(tmp_path):
    index = random_pixels(1, 40, 50, high=5)
    colours = {k: (k, 20 + k, 40 + k, 255) for k in range(5)}
    path = write_raster(tmp_path / "a.tif", index, colormap=colours, photometric="palette", **UTM)
    got = read(path, (3, 1), expand_palette=True)
    np.testing.assert_array_equal(got.values, np.concatenate([index + 40, index]))
    assert got.present.all()
    np.testing.assert_array_equal(read(path, (1,)).values, index)


def test_a_transparent_colour_of_a_palette_is_missing(tmp_path):
    index = random_pixels(1, 40, 50, high=5)[0]
    picture = Image.fromarray(index, "P")
    picture.putpalette([9, 8, 7] * 5)
    picture.save(tmp_path / "a.png", transparency=2)
    got = read(tmp_path / "a.png", expand_palette=True)
    np.testing.assert_array_equal(got.present, index != 2)
    assert (got.values[:, got.present].T == (9, 8, 7)).all()


def test_a_fourth_band_that_is_asked_for_is_no_mask(tmp_path):
    pixels = random_pixels(4, 40, 50)
    pixels[3, :9] = 0
    kinds = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]
    path = write_raster(tmp_path / "a.tif", pixels, colorinterp=kinds, **UTM)
    got = read(path, (4, 1, 2))
    np.testing.assert_array_equal(got.values, pixels[[3, 0, 1]])
    assert got.present.all()


def test_a_vrt_is_read_like_a_file(tmp_path):
    pixels = random_pixels(3, 40, 50)
    write_raster(tmp_path / "a.tif", pixels, **UTM)
    path = write_vrt(tmp_path / "a.vrt", 40, 50, [("Byte", "a.tif", k) for k in (1, 2, 3)])
    source = RasterSource(path, (1, 2, 3), MEANS)
    np.testing.assert_array_equal(source.read(WHOLE).values, pixels)
    assert [name.rpartition("/")[2] for name in source.files] == ["a.vrt", "a.tif"]


def test_an_empty_window_has_no_pixels(tmp_path):
    path = write_raster(tmp_path / "a.tif", random_pixels(3, 40, 50), **UTM)
    assert read(path, window=Window(5, 5, 0, 7)).values.shape == (3, 0, 7)
    assert read(path, window=Window(5, 5, 3, 0)).present.shape == (3, 0)


@pytest.mark.parametrize(
    "transform", [rasterio.Affine.rotation(30) @ rasterio.Affine.scale(2, -3), rasterio.Affine(2, 0.5, 10, 0.3, -2, 20)]
)
def test_a_turned_grid_is_kept(tmp_path, transform):
    path = write_raster(tmp_path / "a.tif", random_pixels(1, 4, 5), crs="EPSG:32633", transform=transform)
    with open_raster(path) as dataset:
        grid = grid_of(dataset)
    np.testing.assert_allclose(grid.transform, tuple(transform)[:6])


def test_many_threads_read_one_source_and_it_can_be_sent_elsewhere(tmp_path):
    pixels = random_pixels(3, 40, 50)
    source = RasterSource(write_raster(tmp_path / "a.tif", pixels, **UTM), (1, 2, 3), MEANS)
    source.read(WHOLE)
    source = pickle.loads(pickle.dumps(source))
    windows = [Window(k % 20, k % 30, 20, 20) for k in range(60)]
    with ThreadPoolExecutor(4) as pool:
        for window, got in zip(windows, pool.map(source.read, windows), strict=True):
            rows, cols = slice(window.top, window.top + 20), slice(window.left, window.left + 20)
            np.testing.assert_array_equal(got.values, pixels[:, rows, cols])
    source.close()


def test_a_damaged_block_is_named(tmp_path):
    path = tmp_path / "a.tif"
    pixels = np.random.default_rng(0).integers(0, 255, (1, 64, 64)).astype(np.uint8)
    write_raster(path, pixels, tiled=True, blockxsize=16, blockysize=16, compress="deflate", **UTM)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = bytes(200)
    path.write_bytes(data)
    source = RasterSource(str(path), (1,), (0.0,))
    with pytest.raises(UserError, match=r"a\.tif cannot be read at rows 0 to 63, columns 0 to 63: .*damaged"):
        source.read(Window(0, 0, 64, 64))
    source.close()


def test_what_is_no_raster_is_explained(tmp_path):
    (tmp_path / "a.tif").write_text("not an image")
    with pytest.raises(UserError, match="cannot be read as a raster"):
        open_raster(str(tmp_path / "a.tif"))
    with pytest.raises(UserError, match="there is no file"):
        open_raster(str(tmp_path / "b.tif"))


def test_a_damaged_mask_beside_the_file(tmp_path):
    """Found by the fuzz campaign: GDAL opens it late, and rasterio raises what it says at the next question."""
    path = write_raster(tmp_path / "s.tif", random_pixels(3, 40, 40), **UTM)
    write_raster(tmp_path / "mask.tif", np.full((40, 40), 255, np.uint8))
    data = (tmp_path / "mask.tif").read_bytes()
    (tmp_path / "s.tif.msk").write_bytes(data[:8])
    with pytest.raises(UserError, match="or a file beside it, is damaged"):
        open_raster(path)


@pytest.mark.parametrize("place", [(0, 0, 1, 0, 0, 1), (2, 1, 0, 4, 2, 0), (math.nan, 0, 1, 0, -1, 1)])
def test_pixels_without_an_area_are_told_in_one_sentence(tmp_path, place):
    """Sums divided by it: a ZeroDivisionError, or that NaN is no integer."""
    path = write_raster(tmp_path / "x.tif", random_pixels(1, 8, 9), **UTM | {"transform": rasterio.Affine(*place)})
    with pytest.raises(UserError, match=r"x.tif places its pixels nowhere: its geotransform \(.*gdal_edit.py"):
        RasterSource(path, (1,), (0.0,))
    with pytest.raises(UserError, match="places its pixels nowhere"):
        vectorize_map(path, str(tmp_path / "x.gpkg"))
