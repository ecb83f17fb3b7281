"""Shapes of a map as longitudes and latitudes of WGS 84, as GeoJSON and STAC want them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.geo.grid import Grid

_DECIMALS = 9  # of a degree: a tenth of a millimetre
_EARTH_RADIUS = 6.4e6  # metres
_LONGEST_GEOGRAPHIC = 1.0  # degrees between points of an outline that is on a geographic grid already


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
    bounds = shapely.bounds(moved)
    across = np.flatnonzero(bounds[:, 2] - bounds[:, 0] > 180)
    for k in across:
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


def _cut_at_date_line(polygon: Any) -> Any:
    """A polygon that seems to go round the world crosses 180 degrees: its two parts, each on its own side."""
    import shapely

    east = shapely.transform(
        polygon, lambda p: np.column_stack([np.where(p[:, 0] < 0, p[:, 0] + 360, p[:, 0]), p[:, 1]])
    )
    parts = []
    for west_edge, shift in ((0.0, 0.0), (180.0, 360.0)):
        half = shapely.intersection(east, shapely.box(west_edge, -90, west_edge + 180, 90))
        moved = shapely.transform(half, lambda p, shift=shift: p - [shift, 0.0])
        parts += [part for part in shapely.get_parts(moved) if part.geom_type == "Polygon" and not part.is_empty]
    return shapely.orient_polygons(shapely.MultiPolygon(parts))
