"""Any raster GDAL reads, as a source of windows with its gaps known and filled."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.geo.drivers import ALL, is_name, open_allowed
from crispseg.geo.gdal import bounded_cache, quiet
from crispseg.geo.grid import Grid
from crispseg.geo.store import check_readable, exists, gdal_name, is_remote
from crispseg.geo.vrt import vrt_files
from crispseg.raster.source import Pixels, Window, fill_gaps
from crispseg.raster.values import some_windows
from crispseg.reading import plainly, refuse_special

_LARGEST_CACHE = 768 * 2**20
_SHADES = 0.1  # the share of half-transparent pixels from which on alpha is not alpha
_OPAQUE = 0.94  # of the largest alpha; compression that loses something leaves no more


class RasterSource:
    """Bands of a raster file, read by any number of threads.

    Each thread has its own handle, so that blocks are decoded at the same time; but a file stored in full rows is read
    through one, whose cache then holds the rows of all tiles side by side. `bands` counts from 1; a palette image
    counts as its colours: red, green, blue. `nodata` is a number that stands for no data beside what the file says; of
    a palette image it is an index.
    """

    def __init__(
        self,
        path: str,
        bands: tuple[int, ...],
        fill: tuple[float, ...],
        expand_palette: bool = False,
        drivers: tuple[str, ...] = (),
        nodata: float | None = None,
    ):
        # absolute, so that a worker started elsewhere finds it
        self.path = os.path.abspath(path) if os.path.exists(path) else path
        self.bands, self.fill, self.drivers = bands, fill, drivers
        self.expand_palette = expand_palette
        self._nodata = int(nodata) if nodata is not None and nodata == int(nodata) else nodata
        self._open_handles()
        with open_raster(path, drivers) as dataset:
            self.height, self.width = dataset.height, dataset.width
            self.grid = grid_of(dataset)
            read = (1,) if expand_palette else bands
            self.dtype = str(np.result_type(*(dataset.dtypes[band - 1] for band in read)))
            self.files = raster_files(dataset, path)
            alpha = alpha_band(dataset)
            self._alpha = 0 if alpha in bands or expand_palette else alpha  # a band asked for is a band, not a mask
            self._palette = palette(dataset) if expand_palette else None
            self._shared = dataset.block_shapes[0][1] == dataset.width
            self._masked = any(_has_mask(dataset.mask_flag_enums[band - 1]) for band in read)

    def read(self, window: Window) -> Pixels:
        if not window.height or not window.width:
            return Pixels(
                np.zeros((len(self.bands), window.height, window.width), np.uint8),
                np.zeros((window.height, window.width), bool),
            )
        with explaining_damage(self.path, window), self._handle() as dataset:
            values, has_data = self._values(dataset, window)
        return fill_gaps(values, has_data, self.fill)

    def reading(self, rows: int) -> contextlib.AbstractContextManager[None]:
        """A file stored in full rows needs a cache for the rows of all tiles side by side."""
        full_rows = rows * self.width * len(self.bands) * np.dtype(self.dtype).itemsize
        return bounded_cache(min(_LARGEST_CACHE, full_rows * 5 // 4) if self._shared else 0)

    def close(self) -> None:
        for handle in self._idle:
            handle.close()
        self._open_handles()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_idle", "_taking", "_alone")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_handles()

    def _open_handles(self) -> None:
        self._idle: list[Any] = []  # handles that no thread uses now
        self._taking = threading.Lock()
        self._alone = threading.Lock()

    @contextlib.contextmanager
    def _handle(self) -> Iterator[Any]:
        with self._alone if self._shared else contextlib.nullcontext():
            with self._taking:
                handle = self._idle.pop() if self._idle else None
            if handle is None:
                handle = open_raster(self.path, self.drivers)
            try:
                yield handle
            finally:
                with self._taking:
                    self._idle.append(handle)

    def _values(self, dataset: Any, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """The raw values and where there are any; None where the file has no gaps to tell of."""
        where = ((window.top, window.top + window.height), (window.left, window.left + window.width))
        if self._palette is not None:
            index = dataset.read(1, window=where)
            colours = np.moveaxis(self._palette[index], -1, 0)  # (4, h, w)
            has_data = colours[3] > 0
            if self._masked:
                has_data &= dataset.read_masks(1, window=where) > 0
            if self._nodata is not None:
                has_data &= index != self._nodata
            values = colours[[band - 1 for band in self.bands]]
            return values, np.broadcast_to(has_data, values.shape)
        values = _read_bands(dataset, self.bands, where)
        has_data = dataset.read_masks(self.bands, window=where) > 0 if self._masked else None
        if self._nodata is not None:
            known = values != self._nodata
            has_data = known if has_data is None else has_data & known
        if self._alpha:
            opaque = np.broadcast_to(dataset.read(self._alpha, window=where) > 0, values.shape)
            has_data = opaque if has_data is None else has_data & opaque
        return values, has_data


def _read_bands(dataset: Any, bands: tuple[int, ...], where: Any) -> NDArray[Any]:
    """(bands, h, w); rasterio reads bands of different types only one by one."""
    if len({dataset.dtypes[band - 1] for band in bands}) == 1:
        return np.asarray(dataset.read(bands, window=where))
    return np.stack([dataset.read(band, window=where) for band in bands])


def open_raster(path: str, drivers: tuple[str, ...] = ()) -> Any:
    """A rasterio dataset; the user's mistakes are told in one sentence, and a missing georeference is no alarm.

    `drivers` of GDAL are allowed beside those that a file of this name is read with (see geo.drivers).
    """
    from rasterio.errors import RasterioIOError

    logging.getLogger("rasterio").setLevel(logging.CRITICAL)  # its messages come back to us as exceptions
    if not is_name(path) and not os.path.exists(path):
        raise UserError(f"there is no file {path}")
    refuse_special(path)
    if is_remote(path) and path.lower().partition("?")[0].endswith(".vrt") and not {"VRT", ALL} & set(drivers):
        raise UserError(f"{path} is a VRT, which can read other files; copy it here, or trust it: --allow-drivers VRT")
    try:
        with quiet():
            dataset = open_allowed(gdal_name(path), drivers)
    except RasterioIOError as error:
        if is_remote(path):
            if not exists(path):
                raise UserError(f"there is no {path}") from error
            check_readable(path)
        raise UserError(
            f"{path} cannot be read as a raster: {(not drivers and plainly(path)) or _one_line(error)}"
        ) from error
    _check_neighbours(dataset, path)
    if not dataset.count:
        inside = ", ".join(dataset.subdatasets[:3])
        dataset.close()
        raise UserError(f"{path} has no bands of its own" + (f"; name one of {inside}" if inside else ""))
    return dataset


def _check_neighbours(dataset: Any, path: str) -> None:
    """Ask once what GDAL finds out late, from masks and notes beside the file."""
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioError

    try:
        with quiet():
            _ = dataset.mask_flag_enums, dataset.colorinterp  # the second raises what went wrong in the first
    except (CPLE_BaseError, RasterioError) as error:
        dataset.close()
        raise UserError(f"{path}, or a file beside it, is damaged: {_one_line(error)}") from error


def raster_files(dataset: Any, path: str) -> tuple[str, ...]:
    """Every file the pixels come from; GDAL does not look into VRTs that a VRT names."""
    nested = (file for name in dataset.files if name.lower().endswith(".vrt") for file in vrt_files(name))
    return tuple(dict.fromkeys([*dataset.files, *nested]))


def descriptions(dataset: Any) -> tuple[str | None, ...]:
    """Of the bands; in another encoding than UTF-8 they are of no use to us, and no harm."""
    try:
        return tuple(dataset.descriptions)
    except UnicodeDecodeError:
        return (None,) * int(dataset.count)


def grid_of(dataset: Any) -> Grid:
    area = dataset.transform.determinant
    if not (math.isfinite(area) and area):
        told = ", ".join(f"{value:g}" for value in dataset.transform.to_gdal())
        raise UserError(
            f"{dataset.name} places its pixels nowhere: its geotransform ({told}) gives them no area; set another with "
            "gdal_edit.py -a_ullr LEFT TOP RIGHT BOTTOM"
        )
    placed = not dataset.transform.is_identity  # GDAL's word for none: pixels of 1 m at the system's origin
    return Grid(
        height=dataset.height,
        width=dataset.width,
        transform=tuple(dataset.transform)[:6],
        crs=dataset.crs.to_wkt() if dataset.crs and placed else "",
        is_point=dataset.tags().get("AREA_OR_POINT") == "Point",
        unplaced=bool(dataset.crs) and not placed,
    )


def alpha_band(dataset: Any) -> int:
    """The band that says where the image is opaque, from 1; 0 if there is none.

    Files of four bytes per pixel are often marked as having alpha when they have near infrared. Alpha is nearly
    everywhere nothing or all, whatever number stands for all; a band of shades is a band of the image.
    """
    band = marked_alpha(dataset)
    if not band:
        return 0
    seen = []
    for window in some_windows(dataset.height, dataset.width):
        where = ((window.top, window.top + window.height), (window.left, window.left + window.width))
        with explaining_damage(dataset.name, window):
            seen.append(dataset.read(band, window=where).ravel())
    values = np.concatenate(seen)
    shades = (values > 0) & (values < _OPAQUE * values.max())
    return 0 if shades.mean() > _SHADES else band


def marked_alpha(dataset: Any) -> int:
    """The band that the file says is alpha; a name such as nir says that it is not."""
    from rasterio.enums import ColorInterp

    for band, (kind, name) in enumerate(zip(dataset.colorinterp, descriptions(dataset), strict=True), 1):
        if kind is ColorInterp.alpha and (not name or "alpha" in name.lower()):
            return band
    return 0


def palette(dataset: Any) -> NDArray[np.uint8] | None:
    """(values, 4) colours of a one-band palette image, or None."""
    from rasterio.enums import ColorInterp

    if dataset.colorinterp[0] is not ColorInterp.palette or dataset.dtypes[0] not in ("uint8", "uint16"):
        return None
    table = np.zeros((np.iinfo(dataset.dtypes[0]).max + 1, 4), np.uint8)
    for value, colour in dataset.colormap(1).items():
        table[value] = colour
    return table


def _has_mask(flags: list[Any]) -> bool:
    """Whether a band has gaps that its mask tells; alpha is read by itself."""
    from rasterio.enums import MaskFlags

    return MaskFlags.all_valid not in flags and MaskFlags.alpha not in flags


@contextlib.contextmanager
def explaining_damage(path: str, window: Window) -> Iterator[None]:
    """Say which part of which file cannot be read."""
    from rasterio.errors import RasterioError

    try:
        yield
    except RasterioError as error:
        rows = f"rows {window.top} to {window.top + window.height - 1}"
        cols = f"columns {window.left} to {window.left + window.width - 1}"
        reason = _one_line(error.__cause__ or error)
        fault = "the file may be damaged or cut short"
        if is_remote(path):
            fault = "the network may have failed (give the command again), or the file is damaged"
        raise UserError(f"{path} cannot be read at {rows}, {cols}: {reason}; {fault}") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")
