"""Where a raster's pixels lie on the ground, and how large they are."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.geo.projected import area_factors, is_true, stretch

_WGS84 = (6378137.0, 298.257223563)  # semi-major axis in metres, inverse flattening


@dataclasses.dataclass(frozen=True)
class Grid:
    """Size, transform (a, b, c, d, e, f as in affine.Affine) and reference system (WKT, empty if unknown)."""

    height: int
    width: int
    transform: tuple[float, float, float, float, float, float] = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    crs: str = ""
    is_point: bool = False  # AREA_OR_POINT=Point
    stated: tuple[float, float] | None = None  # the pixel's size in metres by its user's word, where no crs tells it
    unplaced: bool = False  # the file names a reference system but no place in it, so that nothing can be told by it

    @property
    def has_transform(self) -> bool:
        return self.transform != (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)

    @property
    def lack(self) -> str:
        """What a scene without a reference system lacks, in words to go after its name."""
        if self.unplaced:
            return "names a coordinate reference system but no place in it (no geotransform, no world file)"
        return "has no coordinate reference system"

    @property
    def is_geographic(self) -> bool:
        return bool(self.crs) and bool(_crs(self.crs).is_geographic)

    @property
    def area_unit(self) -> str:
        """m2 on the ground where the size of a pixel is known, pixels otherwise."""
        return "m2" if self.stated or self.is_geographic or self._is_projected else "px"

    @property
    def _is_projected(self) -> bool:
        return bool(self.crs) and bool(_crs(self.crs).is_projected)

    def ground(self, column: Any, row: Any) -> tuple[Any, Any]:
        """Coordinates of places counted in pixels from the upper left corner: numbers or arrays."""
        a, b, c, d, e, f = self.transform
        return a * column + b * row + c, d * column + e * row + f

    def pixel(self, x: Any, y: Any) -> tuple[Any, Any]:
        """(column, row) of coordinates: numbers or arrays."""
        a, b, c, d, e, f = self.transform
        area = a * e - b * d
        return (e * (x - c) - b * (y - f)) / area, (a * (y - f) - d * (x - c)) / area

    def pixel_size(self) -> tuple[float, float]:
        """(along columns, along rows) in metres on the ground, at the middle of the scene."""
        a, b, _, d, e, _ = self.transform
        if self.stated:
            return self.stated
        if self.area_unit == "px":
            raise UserError(f"the scene {self.lack}, so the size of its pixels in metres is unknown")
        if not self.is_geographic:
            unit = _metres_per_unit(self.crs)
            here = stretch(self, self.width / 2, self.height / 2, unit)
            along, down = (1.0, 1.0) if is_true(here.along, here.down) else (float(here.along), float(here.down))
            return math.hypot(a, d) * unit * along, math.hypot(b, e) * unit * down
        latitude = self._latitude(np.array(self.height / 2), np.array(self.width / 2))
        east, north = (float(v) for v in _metres_per_degree(latitude, *_ellipsoid(self.crs)))
        unit = _degrees_per_unit(self.crs)
        return math.hypot(a * east, d * north) * unit, math.hypot(b * east, e * north) * unit

    def pixel_areas(self, top: int, rows: int) -> NDArray[np.float64]:
        """Ground area of the pixels of some rows, broadcastable to (rows, width); ones where it is not known.

        On a projected grid every pixel has the same area, unless the projection is far from the ground's scale, as
        Web Mercator is. On a geographic grid that runs along the parallels it is the exact area of the ellipsoid's
        cell; on a turned one, that of the small parallelogram at the pixel's middle.
        """
        if self.stated or self.area_unit == "px":
            return np.full((1, 1), math.prod(self.stated or (1.0, 1.0)))
        a, b, _, d, e, f = self.transform
        if not self.is_geographic:
            unit = _metres_per_unit(self.crs)
            return abs(a * e - b * d) * unit**2 * area_factors(self, top, rows, unit)
        ellipsoid = _ellipsoid(self.crs)
        unit = _degrees_per_unit(self.crs)
        if b == 0 and d == 0:
            edges = np.clip((f + e * np.arange(top, top + rows + 1)) * unit, -90, 90)
            per_radian = np.abs(np.diff(_area_from_equator(np.radians(edges), *ellipsoid)))
            return per_radian[:, None] * math.radians(abs(a) * unit)
        row, col = np.mgrid[top : top + rows, 0 : self.width] + 0.5
        east, north = _metres_per_degree(self._latitude(row, col), *ellipsoid)
        return np.asarray(abs(a * e - b * d) * unit**2 * east * north, np.float64)

    def sum_areas(self, labels: NDArray[np.integer[Any]], count: int, top: int) -> NDArray[np.float64]:
        """The ground area under each of the labels 0 ... count - 1 in some full rows that begin at `top`."""
        weights = self.pixel_areas(top, len(labels))
        if weights.size == 1:
            return np.asarray(np.bincount(labels.ravel(), minlength=count) * weights.item(), np.float64)
        spread = np.broadcast_to(weights, labels.shape).ravel()
        return np.bincount(labels.ravel(), spread, count).astype(np.float64)

    def resampled(self, resolution: float) -> Grid:
        """The grid over the same ground with pixels of `resolution` metres."""
        x, y = (size / resolution for size in self.pixel_size())
        width, height = max(1, round(self.width * x)), max(1, round(self.height * y))
        a, b, c, d, e, f = self.transform
        x, y = width / self.width, height / self.height
        stated = self.stated and (self.stated[0] / x, self.stated[1] / y)
        transform = (a / x, b / y, c, d / x, e / y, f)
        return dataclasses.replace(self, height=height, width=width, transform=transform, stated=stated)

    def _latitude(self, row: NDArray[Any], col: NDArray[Any]) -> NDArray[Any]:
        _, _, _, d, e, f = self.transform
        return (f + d * col + e * row) * _degrees_per_unit(self.crs)


def _crs(wkt: str) -> Any:
    from rasterio.crs import CRS

    return CRS.from_wkt(wkt)


def _metres_per_unit(wkt: str) -> float:
    return float(_crs(wkt).linear_units_factor[1])


def _degrees_per_unit(wkt: str) -> float:
    """Degrees per angular unit of a geographic reference system (1 for degrees, 0.9 for grads)."""
    return math.degrees(float(_crs(wkt).units_factor[1]))


def _ellipsoid(wkt: str) -> tuple[float, float]:
    found = re.search(r'(?:SPHEROID|ELLIPSOID)\["[^"]*",\s*([0-9.eE+-]+)\s*,\s*([0-9.eE+-]+)', wkt)
    return (float(found[1]), float(found[2])) if found else _WGS84


def _eccentricity2(inverse_flattening: float) -> float:
    flattening = 1 / inverse_flattening if inverse_flattening else 0.0  # 0 in WKT means a sphere
    return flattening * (2 - flattening)


def _area_from_equator(latitude: NDArray[np.float64], axis: float, inverse_flattening: float) -> NDArray[np.float64]:
    """Area between the equator and a latitude (radians), per radian of longitude, on the ellipsoid."""
    e2 = _eccentricity2(inverse_flattening)
    sine = np.sin(latitude)
    if e2 == 0:
        return axis**2 * sine
    e = math.sqrt(e2)
    return axis**2 * (1 - e2) / 2 * (sine / (1 - e2 * sine**2) + np.arctanh(e * sine) / e)


def _metres_per_degree(
    latitude: NDArray[np.float64], axis: float, inverse_flattening: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Length of a degree of longitude and of latitude at a latitude in degrees."""
    e2 = _eccentricity2(inverse_flattening)
    phi = np.radians(latitude)
    w = 1 - e2 * np.sin(phi) ** 2
    east = axis / np.sqrt(w) * np.cos(phi)
    north = axis * (1 - e2) / w**1.5
    return np.radians(east), np.radians(north)
