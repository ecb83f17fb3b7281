"""Reading files of every kind, against what rasterio and pillow were given to write."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crispseg.data.images import Header, read_header, read_image, read_mask
from crispseg.errors import UserError

rasterio = pytest.importorskip("rasterio")


def write(path: Path, array: np.ndarray, driver: str = "GTiff", **options: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        height, width, count = array.shape
        with rasterio.open(
            path, "w", driver=driver, width=width, height=height, count=count, dtype=array.dtype, **options
        ) as file:
            file.write(np.moveaxis(array, -1, 0))


def test_pillow_says_nothing_of_a_tif_that_rasterio_reads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A line for each of thousands of images with 13 bands, as if they could not be read."""
    write(tmp_path / "a.tif", np.ones((4, 5, 13), np.uint16))
    assert read_image(tmp_path / "a.tif").shape == (4, 5, 13)
    assert not caplog.records


@pytest.mark.parametrize("bands", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
def test_tif_of_any_bands_and_type(dtype: str, bands: int, tmp_path: Path) -> None:
    array = (np.random.default_rng(0).random((7, 9, bands)) * 100).astype(dtype)
    path = tmp_path / "a.tif"
    write(path, array, tiled=False, compress="deflate" if bands == 3 else "none")
    for source in (path, path.read_bytes()):
        found = read_image(source, "a.tif")
        assert found.dtype == array.dtype and np.array_equal(found, array)
        assert read_header(source, "a.tif") == Header(9, 7, bands, dtype)


@pytest.mark.parametrize("bits", [2, 4])
def test_ids_of_a_tif_of_few_bits(bits: int, tmp_path: Path) -> None:
    """GIS programs store few classes in few bits; the values are ids, no shares of white."""
    ids = np.arange(30).reshape(5, 6).astype(np.uint8) % 2**bits
    for kind in ("minisblack", "palette"):
        write(tmp_path / "x.tif", ids[..., None], nbits=bits, photometric=kind)
        assert np.array_equal(read_mask(tmp_path / "x.tif"), ids), kind
    assert read_header(tmp_path / "x.tif").bands == 3  # a palette is still shown as colours


def test_png_of_any_depth(tmp_path: Path) -> None:
    deep = (np.random.default_rng(0).random((7, 9, 3)) * 60000).astype(np.uint16)
    write(tmp_path / "rgb16.png", deep, "PNG")
    Image.fromarray(deep[..., 0]).save(tmp_path / "grey16.png")
    assert np.array_equal(read_image(tmp_path / "rgb16.png"), deep)
    assert np.array_equal(read_image(tmp_path / "grey16.png"), deep[..., :1])
    assert read_header(tmp_path / "grey16.png") == Header(9, 7, 1, "uint16")


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_palette_pictures_are_ids_as_masks_and_rgb_as_images(suffix: str, tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 4, (6, 8), dtype=np.uint8)
    picture = Image.fromarray(ids)
    picture.putpalette([9, 8, 7, 1, 2, 3, 40, 50, 60, 0, 0, 0])
    picture.save(tmp_path / f"p.{suffix}")
    assert np.array_equal(read_mask(tmp_path / f"p.{suffix}"), ids)
    colours = np.array([[9, 8, 7], [1, 2, 3], [40, 50, 60], [0, 0, 0]])
    assert np.array_equal(read_image(tmp_path / f"p.{suffix}"), colours[ids])


@pytest.mark.parametrize("name", ["a.png", "a.tif", "deep.tif"])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_files_cut_short_are_refused(name: str, kept: float, tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    if name == "deep.tif":
        write(tmp_path / name, array.astype(np.uint16))
    else:
        Image.fromarray(array).save(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(UserError, match=name):
        read_image(tmp_path / name)
    if name != "deep.tif":  # noticed without decoding
        with pytest.raises(UserError, match=name):
            read_header(tmp_path / name)


def test_what_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("this is no picture, whatever it is called")
    with pytest.raises(UserError, match=r"a\.jpg cannot be read as an image"):
        read_image(tmp_path / "a.jpg")
    with pytest.raises(UserError, match="there is no image"):
        read_image(tmp_path / "absent.png")


def test_without_rasterio_everyday_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(0).integers(0, 255, (5, 6, 3), dtype=np.uint8)
    Image.fromarray(array).save(tmp_path / "a.tif")
    write(tmp_path / "b.tif", array.astype(np.uint16))
    monkeypatch.setitem(sys.modules, "rasterio", None)
    assert np.array_equal(read_image(tmp_path / "a.tif"), array)
    with pytest.raises(UserError, match="needs rasterio"):
        read_image(tmp_path / "b.tif")
