"""How large pixels of a projected grid are on the ground.

A projection's metres are the ground's only near: in Web Mercator a unit at 60 degrees north is half a metre. So pixels
are placed on the ellipsoid in space, where neither the poles nor the date line are special, and measured there.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from crispseg.geo.grid import Grid

_AXIS, _FLATTENING = 6378137.0, 1 / 298.257223563  # of WGS 84, metres
_TRUE = 0.01  # within it, a projection's own units are taken: those of surveys (UTM, state plane) are made for that
_PARTS = 32  # of a scene in each direction, between which the areas of pixels change evenly


class Stretch(NamedTuple):
    """What a length along columns, one along rows and an area on the grid are on the ground, as factors."""

    along: NDArray[np.float64]
    down: NDArray[np.float64]
    area: NDArray[np.float64]


def stretch(grid: Grid, column: Any, row: Any, unit: float) -> Stretch:
    """At places counted in pixels; `unit` is the projection's in metres. One where it is not known where they lie."""
    column, row = np.broadcast_arrays(np.asarray(column, float), np.asarray(row, float))
    a, b, _, d, e, _ = grid.transform
    places = [grid.ground(column + x, row + y) for x, y in ((-0.5, 0), (0.5, 0), (0, -0.5), (0, 0.5))]
    left, right, above, below = (_in_space(grid.crs, x, y) for x, y in places)
    along, down = right - left, below - above  # (..., 3)
    grid_area = abs(a * e - b * d) * unit**2
    factors = (
        np.linalg.norm(along, axis=-1) / (np.hypot(a, d) * unit),
        np.linalg.norm(down, axis=-1) / (np.hypot(b, e) * unit),
        np.linalg.norm(np.cross(along, down), axis=-1) / grid_area,
    )
    return Stretch(*(np.where(np.isfinite(factor) & (factor > 0), factor, 1.0) for factor in factors))


def is_true(*factors: NDArray[np.float64]) -> bool:
    """Whether the projection's own units will do."""
    return all(bool((np.abs(factor - 1) <= _TRUE).all()) for factor in factors)


def area_factors(grid: Grid, top: int, rows: int, unit: float) -> NDArray[np.float64]:
    """Of the pixels of some rows, broadcastable to (rows, width)."""
    lattice = _lattice(grid, unit)
    if lattice is None:
        return np.ones((1, 1))
    by_row = _between(np.arange(top, top + rows, dtype=np.float64) + 0.5, grid.height, lattice)
    return _between(np.arange(grid.width, dtype=np.float64) + 0.5, grid.width, by_row.T).T


@functools.lru_cache(maxsize=8)
def _lattice(grid: Grid, unit: float) -> NDArray[np.float64] | None:
    """Area factors at places spread evenly over the grid; None where all are as good as one."""
    columns = np.linspace(0, grid.width, min(grid.width, _PARTS) + 1)
    rows = np.linspace(0, grid.height, min(grid.height, _PARTS) + 1)
    factors = stretch(grid, columns[None, :], rows[:, None], unit).area
    return None if is_true(factors) else factors


def _between(places: NDArray[np.float64], length: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values at places of 0 ... length, from those given evenly along the first axis."""
    parts = len(values) - 1
    steps = places * parts / length
    before = np.minimum(steps.astype(np.int64), parts - 1)
    share = (steps - before)[:, None]
    return np.asarray(values[before] * (1 - share) + values[before + 1] * share, np.float64)


def _in_space(crs: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Places of a reference system as (..., 3) metres from the middle of the Earth; NaN where that is not known."""
    from rasterio._err import CPLE_BaseError
    from rasterio.crs import CRS
    from rasterio.errors import RasterioError
    from rasterio.warp import transform

    try:
        found = transform(CRS.from_wkt(crs), CRS.from_epsg(4326), x.ravel(), y.ravel())
    except (CPLE_BaseError, RasterioError):  # some lie outside the projection, or on another planet
        found = np.full((2, x.size), np.nan)
    lon, lat = np.radians(np.asarray(found, float)).reshape(2, *x.shape)
    e2 = _FLATTENING * (2 - _FLATTENING)
    with np.errstate(invalid="ignore"):  # infinity may stand for places outside the projection
        across = _AXIS / np.sqrt(1 - e2 * np.sin(lat) ** 2)
        return np.stack(
            [across * np.cos(lat) * np.cos(lon), across * np.cos(lat) * np.sin(lon), across * (1 - e2) * np.sin(lat)],
            axis=-1,
        )
