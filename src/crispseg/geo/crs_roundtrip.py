"""Which reference systems a format keeps: GDAL leaves some out of a file, or writes another, without a word."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

import numpy as np

from crispseg.errors import UserError
from crispseg.geo.gdal import quiet
from crispseg.geo.grid import Grid

if TYPE_CHECKING:
    from rasterio.crs import CRS

_NEAR = 1e-7  # degrees: a centimetre


def check_geotiff_keeps(grid: Grid) -> None:
    """Refuse a reference system that maps would not have."""
    if grid.crs and not _same_place(grid, _through_geotiff(grid.crs)):
        raise UserError(
            "its reference system cannot be kept in a GeoTIFF, which maps are; bring the scene to one that has a code: "
            "gdalwarp -t_srs EPSG:CODE"
        )


def check_flatgeobuf_keeps(grid: Grid) -> None:
    """Refuse a reference system that polygons would not have."""
    if grid.crs and not _same_place(grid, _through_flatgeobuf(grid.crs)):
        raise UserError("its reference system would become another in a FlatGeobuf; write polygons to .gpkg")


def _same_place(grid: Grid, written: CRS | None) -> bool:
    """Whether the middle of the grid lies where it did; what lies nowhere on Earth need only have a system."""
    from rasterio._err import CPLE_BaseError
    from rasterio.crs import CRS
    from rasterio.errors import RasterioError
    from rasterio.warp import transform

    if written is None:
        return False
    x, y = grid.ground(grid.width / 2, grid.height / 2)
    try:
        here, there = (transform(crs, CRS.from_epsg(4326), [x], [y]) for crs in (CRS.from_wkt(grid.crs), written))
    except (CPLE_BaseError, RasterioError):
        return True
    return bool(np.allclose(here, there, rtol=0, atol=_NEAR, equal_nan=True))


def _through_geotiff(crs: str) -> CRS | None:
    import rasterio

    # without GDAL's own notes, .aux.xml: that of a map is ours
    with quiet(), rasterio.Env(GDAL_PAM_ENABLED="NO"), rasterio.MemoryFile() as file:
        file.open(driver="GTiff", width=1, height=1, count=1, dtype="uint8", crs=crs).close()
        with file.open() as written:
            return written.crs


def _through_flatgeobuf(crs: str) -> CRS | None:
    import pyogrio
    import shapely
    from rasterio.crs import CRS

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pyogrio.raw.write(
            file,
            geometry=shapely.to_wkb(np.array([shapely.box(0, 0, 1, 1)])),
            field_data=[],
            fields=[],
            crs=crs,
            geometry_type="Polygon",
            driver="FlatGeobuf",
        )
    found = pyogrio.read_info(file.getvalue())["crs"]
    return CRS.from_user_input(found) if found else None
