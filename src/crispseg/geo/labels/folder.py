"""Images and masks as GeoTIFFs in the folder layout, written strip by strip, with what they hold summed up."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.data.classes import IGNORE, ClassTable
from crispseg.data.drawing import to_rgb
from crispseg.data.manifest import band_sums
from crispseg.geo.gdal import quiet
from crispseg.geo.labels.burn import Burner, area_of_interest
from crispseg.geo.labels.images import Ortho
from crispseg.geo.labels.layers import Shapes
from crispseg.geo.labels.picture import SHOWN, Drawn
from crispseg.geo.writer import explaining_failure
from crispseg.raster.source import Window

STRIP = 512  # rows read, burnt and written at a time
_BLOCK = 256


@dataclasses.dataclass
class Chip:
    """One image and its mask, as the manifest and the contact sheet tell of them."""

    name: str
    window: Window
    sums: NDArray[np.float64]  # (bands, 3), see data.manifest
    histogram: NDArray[np.int64]  # pixels of each class
    pictures: list[Drawn] = dataclasses.field(default_factory=list)  # one, if anything is labelled

    @property
    def labelled(self) -> int:
        return int(self.histogram.sum())


@dataclasses.dataclass(frozen=True)
class Labels:
    """What is burnt onto one image."""

    burner: Burner
    interest: Shapes | None
    table: ClassTable


def write_chip(folder: Path, ortho: Ortho, labels: Labels, window: Window, name: str) -> Chip:
    """Write images/NAME.tif and masks/NAME.tif; both are removed again where nothing is labelled."""
    bands, classes = len(ortho.band_names), len(labels.table.names)
    chip = Chip(name, window, np.zeros((bands, 3)), np.zeros(classes, np.int64))
    pictures = _Pictures(window)
    paths = [folder / kind / f"{name}.tif" for kind in ("images", "masks")]
    with contextlib.ExitStack() as open_files:
        files = [
            open_files.enter_context(_create(path, ortho, window, count, dtype, nodata))
            for path, count, dtype, nodata in (
                (paths[0], bands, ortho.dtype, ortho.nodata),
                (paths[1], 1, "uint8", IGNORE),
            )
        ]
        for top in range(0, window.height, STRIP):
            part = Window(window.top + top, window.left, min(STRIP, window.height - top), window.width)
            pixels, mask = ortho.source.read(part), _mask(labels, part)
            values = pixels.values.astype(ortho.dtype)  # exact: the source only widens small whole numbers
            mask[~pixels.present | np.isnan(values).any(0)] = IGNORE
            where = ((top, top + part.height), (0, part.width))
            with explaining_failure(paths[0]):
                files[0].write(values, window=where)
                files[1].write(mask, 1, window=where)
            measured = pixels.present if ortho.nodata is None else pixels.present & (values != ortho.nodata)
            measured = np.broadcast_to(measured, values.shape)
            chip.sums += np.array(band_sums(np.moveaxis(values, 0, -1), np.moveaxis(measured, 0, -1)))
            chip.histogram += np.bincount(mask.ravel(), minlength=256)[:classes]
            pictures.add(top, values, mask)
    if not chip.labelled:
        for path in paths:
            path.unlink()
    else:
        chip.pictures = [pictures.finished(name)]
    return chip


def _mask(labels: Labels, window: Window) -> NDArray[np.uint8]:
    mask = labels.burner.burn(window)
    if labels.interest is not None:
        mask[~area_of_interest(labels.interest, window)] = IGNORE
    return mask


@contextlib.contextmanager
def _create(path: Path, ortho: Ortho, window: Window, count: int, dtype: str, nodata: int | None) -> Any:
    import rasterio

    path.parent.mkdir(parents=True, exist_ok=True)
    grid = ortho.grid
    place = rasterio.Affine(*grid.transform) @ rasterio.Affine.translation(window.left, window.top)
    with explaining_failure(path), quiet():
        file = rasterio.open(
            path,
            "w",
            driver="GTiff",
            width=window.width,
            height=window.height,
            count=count,
            dtype=dtype,
            nodata=nodata,
            crs=grid.crs or None,
            transform=place if grid.has_transform else None,
            compress="deflate",
            predictor=3 if dtype == "float32" else 2,
            interleave="pixel",
            photometric="rgb" if count == 3 and dtype == "uint8" else "minisblack",
            bigtiff="if_safer",
            **({"tiled": True, "blockxsize": _BLOCK, "blockysize": _BLOCK} if min(window[2:]) >= _BLOCK else {}),
        )
    try:
        if count > 1:
            for band, name in enumerate(ortho.band_names, 1):
                file.set_band_description(band, name)
        yield file
    finally:
        with explaining_failure(path):
            file.close()


class _Pictures:
    """Every so-manieth pixel of an image and its mask."""

    def __init__(self, window: Window):
        self.step = max(1, -(-max(window.height, window.width) // SHOWN))
        self.images: list[NDArray[Any]] = []
        self.masks: list[NDArray[np.uint8]] = []

    def add(self, top: int, values: NDArray[Any], mask: NDArray[np.uint8]) -> None:
        first = -top % self.step
        self.images.append(np.moveaxis(values[:, first :: self.step, :: self.step], 0, -1))
        self.masks.append(mask[first :: self.step, :: self.step])

    def finished(self, name: str) -> Drawn:
        return Drawn(name, to_rgb(np.concatenate(self.images)), np.concatenate(self.masks))
