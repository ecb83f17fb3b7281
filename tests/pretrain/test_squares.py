"""Squares cut from unlabelled images: which are left out, and what is said of that."""

import numpy as np
import pytest
from PIL import Image

from crispseg.data.images import read_nodata
from crispseg.errors import UserError
from crispseg.pretrain.sources import open_source
from crispseg.pretrain.squares import three_bands

DRAWS = np.random.default_rng(0)


def write(path, pixels, **profile):
    pytest.importorskip("rasterio")
    from tests.geo.rasters import write_raster

    write_raster(path, np.moveaxis(pixels, -1, 0), **profile)


def corners(windows):
    return [windows.name(i).partition(" at ")[2] for i in range(len(windows))]


def test_squares_of_one_colour_are_left_out_and_counted(tmp_path):
    image = DRAWS.integers(0, 255, (64, 96, 3)).astype(np.uint8)
    image[:32, :32] = 17
    image[32:, :32][:31] = (1, 2, 3)  # all but a row
    Image.fromarray(image).save(tmp_path / "scene.png")
    windows, _ = open_source(tmp_path, False, 32)
    assert corners(windows) == [f"row {r}, column {c}" for r in (0, 32) for c in (32, 64)]
    assert windows.notes == ("2 of 6 squares left out: without data, or of one colour",)
    np.testing.assert_array_equal(windows.read(1), image[:32, 64:])


def test_squares_without_data_are_left_out_by_the_value_the_file_names(tmp_path):
    pixels = DRAWS.integers(2000, 3000, (32, 96, 3)).astype(np.int16)
    pixels[:, :32] = -9999
    pixels[0, 0] = 2500
    pixels[:16, 32:64] = -9999  # half of it may be learnt from
    write(tmp_path / "scene.tif", pixels, nodata=-9999)
    windows, _ = open_source(tmp_path, False, 32)
    assert corners(windows) == ["row 0, column 32", "row 0, column 64"]
    assert windows.read(1).std() > 50  # stretched by what is data, not by the filler
    assert (windows.read(0)[:16] == 0).all() and windows.read(0)[16:].std() > 50


def test_gaps_of_floats_need_no_value(tmp_path):
    pixels = DRAWS.random((32, 64, 3)).astype(np.float32)
    pixels[:, :32] = np.nan
    pixels[0, 32:, 0] = 3e38
    write(tmp_path / "scene.tif", pixels)
    windows, _ = open_source(tmp_path, False, 32)
    assert corners(windows) == ["row 0, column 32"] and windows.read(0)[1:].std() > 50


def test_nothing_left_is_said(tmp_path):
    Image.fromarray(np.full((64, 64, 3), 9, np.uint8)).save(tmp_path / "sea.png")
    with pytest.raises(UserError, match="nothing to learn from below .* all 4 squares of 32 px are without data or of"):
        open_source(tmp_path, False, 32)
    assert (three_bands(np.full((2, 2, 1), np.nan, np.float32)) == 0).all()


def test_more_than_three_bands_are_said_once(tmp_path):
    pixels = DRAWS.integers(0, 255, (32, 32, 5)).astype(np.uint8)
    for name in ("a.tif", "b.tif"):
        write(tmp_path / name, pixels)
    windows, _ = open_source(tmp_path, False, 32)
    assert windows.notes == ("bands 1, 2 and 3 are taken where there are more, as in a.tif with 5",)
    np.testing.assert_array_equal(windows.read(0), pixels[..., :3])
    for kind in ("x", "y"):
        (tmp_path / "classes" / kind).mkdir(parents=True)
        for number in range(9):
            write(tmp_path / "classes" / kind / f"{number}.tif", pixels)
    assert "with 5" in open_source(tmp_path / "classes", True, 32)[0].notes[0]


def test_the_value_without_data_is_read_by_either_library(tmp_path):
    shallow, deep = np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8, 5), np.int16)
    write(tmp_path / "shallow.tif", shallow, nodata=255)
    write(tmp_path / "deep.tif", deep, nodata=-9999)
    write(tmp_path / "none.tif", shallow)
    Image.fromarray(shallow).save(tmp_path / "picture.png")
    found = [read_nodata(tmp_path / name) for name in ("shallow.tif", "deep.tif", "none.tif", "picture.png")]
    assert found == [255, -9999, None, None]
