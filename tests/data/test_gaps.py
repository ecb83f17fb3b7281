"""Pixels without data: no part of what is learnt, whatever number stands for them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from crispseg.data import SegmentationDataset, inspect, open_folder
from tests.fakedata import fake_own

rasterio = pytest.importorskip("rasterio")

FILLERS = [
    ("float32", -9999.0, -9999.0),
    ("float32", -3.4028234663852886e38, -3.4028234663852886e38),
    ("float32", 1e20, None),  # without a tag: no sensor counts so far
    ("float32", np.nan, None),
    ("float64", -9999.0, -9999.0),
    ("int16", -32768, -32768),
    ("uint16", 65535, 65535),
    ("uint16", 0, 0),
    ("uint8", 0, 0),
]


def collared(root: Path, dtype: str, filler: float, nodata: float | None) -> tuple[Path, dict[str, NDArray[np.bool_]]]:
    """Images as tifs with a collar of `filler`, and where their data is."""
    fake_own(root)
    present = {}
    for number, path in enumerate(sorted((root / "images").iterdir())):
        pixels = np.asarray(Image.open(path)).astype(dtype) + (1 if dtype != "uint8" else 0)
        pixels = np.maximum(pixels, 1)
        present[path.stem] = np.ones(pixels.shape[:2], bool)
        present[path.stem][: 5 + number] = False
        pixels[~present[path.stem]] = filler
        facts = {"height": pixels.shape[0], "width": pixels.shape[1], "count": 3, "dtype": dtype, "nodata": nodata}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
            with rasterio.open(path.with_suffix(".tif"), "w", driver="GTiff", **facts) as file:
                file.write(np.moveaxis(pixels, -1, 0))
        path.unlink()
    return root, present


def raw(root: Path, name: str) -> NDArray[np.float64]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(root / "images" / f"{name}.tif") as file:
            return np.moveaxis(file.read(), 0, -1).astype(np.float64)


@pytest.mark.parametrize(("dtype", "filler", "nodata"), FILLERS)
def test_collars_are_neither_measured_nor_learnt(
    dtype: str, filler: float, nodata: float | None, tmp_path: Path
) -> None:
    root, present = collared(tmp_path, dtype, filler, nodata)
    folder = open_folder(root)
    train = folder.records("train")
    measured = np.concatenate([raw(root, record.name)[present[record.name]] for record in train])
    np.testing.assert_allclose(folder.statistics().mean, measured.mean(0))
    np.testing.assert_allclose(folder.statistics().std, measured.std(0), rtol=1e-6)
    for record, (image, mask, _) in zip(train, SegmentationDataset(folder, "train"), strict=True):
        drawn = np.asarray(Image.open(record.masks["full"]))
        np.testing.assert_array_equal(mask.numpy(), np.where(present[record.name], drawn, 255))
        collar = int((~present[record.name][:, 0]).sum())
        inside = raw(root, record.name)[collar:].astype(np.float32)
        shown = np.pad(inside, ((collar, 0), (0, 0), (0, 0)), mode="reflect")  # as `crisp predict` shows it
        np.testing.assert_array_equal(image.numpy(), np.moveaxis(shown, -1, 0))


@pytest.mark.parametrize(("dtype", "filler", "nodata"), FILLERS)
def test_the_look_at_a_folder_tells_the_same(dtype: str, filler: float, nodata: float | None, tmp_path: Path) -> None:
    root, present = collared(tmp_path, dtype, filler, nodata)
    report = inspect(root)
    measured = np.concatenate([raw(root, name)[there] for name, there in present.items()])
    assert report.problems == [] and report.statistics is not None
    np.testing.assert_allclose(report.statistics.mean, measured.mean(0))
    assert report.ignored_pixels == sum(int((~there).sum()) for there in present.values())


def test_a_dark_pixel_is_no_collar(tmp_path: Path) -> None:
    """Of whole numbers only pixels that lack all bands have no data."""
    root, present = collared(tmp_path, "uint8", 0, 0)
    name = next(iter(present))
    pixels = raw(root, name).astype(np.uint8)
    pixels[20, 20] = (0, 90, 90)
    with rasterio.open(root / "images" / f"{name}.tif", "r+") as file:
        file.write(np.moveaxis(pixels, -1, 0))
    folder = open_folder(root)
    record = next(r for split in ("train", "val") for r in folder.records(split) if r.name == name)
    assert folder.read_mask(record)[20, 20] != 255
    assert folder.read_image(record)[20, 20].tolist() == [0, 90, 90]
    measured = folder.read_gapped(record).measured
    assert measured is not None and measured[20, 20].tolist() == [False, True, True]
    split = next(split for split in ("train", "val") if record in folder.records(split))
    for mean, shown in (((7.4, 1.0, 2.0), 7), ((300.0, 1.0, 2.0), 255), ((), 0)):  # the cache keeps them apart
        dataset = SegmentationDataset(folder, split, cache=tmp_path / "cache")
        dataset.show_means(mean)
        image = dataset[folder.records(split).index(record)][0]
        assert image[:, 20, 20].tolist() == [shown, 90, 90]


def test_pixels_that_lack_a_band_show_the_others(tmp_path: Path) -> None:
    """Of real numbers too, though they are not learnt: `crisp predict` shows them so."""
    root, present = collared(tmp_path, "float32", np.nan, None)
    name = next(iter(present))
    pixels = raw(root, name).astype(np.float32)
    pixels[20, 20] = (np.nan, 90, 80)
    with rasterio.open(root / "images" / f"{name}.tif", "r+") as file:
        file.write(np.moveaxis(pixels, -1, 0))
    dataset = SegmentationDataset(open_folder(root, split=dict.fromkeys(present, "val")), "val")
    dataset.show_means((7.25, 1.0, 2.0))
    image, mask, _ = dataset[list(present).index(name)]
    assert image[:, 20, 20].tolist() == [7.25, 90, 80] and mask[20, 20] == 255
    assert not image.isnan().any()
