"""Shapes of a map as longitudes and latitudes of WGS 84, as GeoJSON and STAC want them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.geo.grid import Grid

_DECIMALS = 9  # of a degree: a tenth of a millimetre
_EARTH_RADIUS = 6.4e6  # metres
_LONGEST_GEOGRAPHIC = 1.0  # degrees between points of an outline that is on a geographic grid already


def on_earth(crs: str, x: float, y: float) -> bool:
    """Whether a place has a longitude and a latitude: in reference systems of a site of its own none has."""
    from rasterio._err import CPLE_BaseError
    from rasterio.crs import CRS
    from rasterio.errors import RasterioError
    from rasterio.warp import transform

    try:
        transform(CRS.from_user_input(crs), CRS.from_epsg(4326), [x], [y])
    except (CPLE_BaseError, RasterioError):
        return False
    return True


def check_on_earth(grid: Grid) -> None:
    """Refuse a scene that has no longitudes and latitudes, or whose outlines do not close in them."""
    if not on_earth(grid.crs, *grid.ground(grid.width / 2, grid.height / 2)):
        raise UserError(
            "its coordinates have no longitudes and latitudes (the reference system is of a place of its own, or ends "
            "before it), which GeoJSON and STAC items need; write polygons to .gpkg or .fgb, and no STAC item"
        )
    if holds_a_pole(grid):
        raise UserError(
            "a pole lies in it, around which no outline closes in longitudes and latitudes, which GeoJSON and STAC "
            "items need; write polygons to .gpkg or .fgb, and no STAC item"
        )


def holds_a_pole(grid: Grid) -> bool:
    """Whether all longitudes meet in a point inside the grid; where a pole is a line, outlines are cut as elsewhere."""
    from rasterio._err import CPLE_BaseError
    from rasterio.crs import CRS
    from rasterio.errors import RasterioError
    from rasterio.warp import transform

    system = CRS.from_wkt(grid.crs)
    for latitude in (90.0, -90.0):
        try:
            x, y = transform(CRS.from_epsg(4326), system, [0.0, 90.0], [latitude] * 2)
        except (CPLE_BaseError, RasterioError):
            continue
        columns, rows = grid.pixel(np.array(x), np.array(y))
        is_point = np.hypot(np.ptp(columns), np.ptp(rows)) < 1
        if is_point and 0 < columns[0] < grid.width and 0 < rows[0] < grid.height:
            return True
    return False


def to_lonlat(polygons: NDArray[Any], grid: Grid) -> NDArray[Any]:
    """Polygons in the grid's reference system as RFC 7946 has them: anticlockwise, cut at the date line.

    A straight side in one reference system is a curve in another; long sides get points in between, so that the
    outline stays within a tenth of a pixel of its place.
    """
    import shapely

    if not len(polygons):
        return polygons
    moved = shapely.transform(shapely.segmentize(polygons, _longest_side(grid)), lambda points: _lonlat(points, grid))
    moved = shapely.orient_polygons(moved)
    west, _, east, _ = shapely.bounds(moved).T
    if not grid.is_geographic:  # what seems to go round the world crosses 180 degrees
        for k in np.flatnonzero(east - west > 180):
            moved[k] = _cut_at_date_line(shapely.transform(moved[k], _from_zero))
    else:  # its longitudes go on beyond 180 degrees, and may well go round the world
        for k in np.flatnonzero((west < -180) | (east > 180)):
            moved[k] = _cut_at_date_line(moved[k])
    return moved


def footprint(grid: Grid) -> Any:
    """The outline of the whole grid, in longitudes and latitudes."""
    import shapely

    a, b, c, d, e, f = grid.transform
    corners = [(0, 0), (0, grid.height), (grid.width, grid.height), (grid.width, 0)]
    outline = shapely.Polygon([(a * x + b * y + c, d * x + e * y + f) for x, y in corners])
    return to_lonlat(np.array([outline], object), grid)[0]


def _longest_side(grid: Grid) -> float:
    """A chord of length s departs from its arc by s² / (8 radius); twice that is allowed for steep latitudes."""
    if grid.is_geographic or grid.area_unit == "px":
        return _LONGEST_GEOGRAPHIC if grid.is_geographic else math.inf
    along, down = grid.pixel_size()
    units_per_metre = math.hypot(grid.transform[0], grid.transform[3]) / along
    return math.sqrt(8 * _EARTH_RADIUS * 0.05 * min(along, down)) / 2 * units_per_metre


def _lonlat(points: NDArray[np.float64], grid: Grid) -> NDArray[np.float64]:
    from rasterio.crs import CRS
    from rasterio.warp import transform

    if not len(points):
        return points
    moved = transform(CRS.from_wkt(grid.crs), CRS.from_epsg(4326), points[:, 0], points[:, 1])
    return np.round(np.array(moved).T, _DECIMALS)


def _from_zero(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Longitudes from 0 to 360 degrees."""
    return np.column_stack([np.where(points[:, 0] < 0, points[:, 0] + 360, points[:, 0]), points[:, 1]])


def _cut_at_date_line(polygon: Any) -> Any:
    """A polygon with longitudes beyond 180 degrees: its parts, each on its own side."""
    import shapely

    west, _, east, _ = polygon.bounds
    parts = []
    for turn in range(math.floor((west + 180) / 360), math.ceil((east + 180) / 360)):
        half = shapely.intersection(polygon, shapely.box(360 * turn - 180, -90, 360 * turn + 180, 90))
        moved = shapely.transform(half, lambda p, turn=turn: p - [360.0 * turn, 0.0])
        parts += [part for part in shapely.get_parts(moved) if part.geom_type == "Polygon" and not part.is_empty]
    return shapely.orient_polygons(shapely.MultiPolygon(parts))
