"""Polygons of a vector file, those in sight at a time, as GeoJSON in longitude and latitude."""

from __future__ import annotations

import functools
import json
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.geo.labels.layers import check_vector_file, explaining_polygons
from crispseg.geo.lonlat import on_earth
from crispseg.view.rasters import Raster, turned
from crispseg.view.space import PIXEL, TILE, Box, to_degrees

MOST = 4000  # polygons sent at a time; with more in sight the page asks to come closer
_FARTHEST = 720.0  # degrees
_DIGITS = 8  # of degrees: a millimetre


class Features:
    """One layer of a file, whose CRS is its own or, without one, the map's pixels or coordinates."""

    def __init__(self, path: str, reference: Raster) -> None:
        import pyogrio

        self.path, self.reference = path, reference
        check_vector_file(path)
        with explaining_polygons(path):
            drawn = [str(name) for name, kind in pyogrio.list_layers(path) if kind is not None]
            if not drawn:
                raise UserError(f"{path} has no layer with shapes to draw")
            self.layer = drawn[0]
            about = pyogrio.read_info(path, layer=self.layer, force_total_bounds=True)
        self.crs = _crs_on_earth(about)
        self.columns = [str(name) for name in about["fields"]]
        if self.crs and reference.in_pixels:
            raise UserError(
                f"{path} has a reference system and {reference.path} has none, or lies at a pole, so nothing says how "
                "they lie on this page; without one, make polygons of this map: crisp vectorize"
            )
        self._cached = functools.lru_cache(64)(self._read)

    def inside(self, box: Box, zoom: float) -> dict[str, Any]:
        """The features in sight; `many` and none of them where they are too many."""
        stamp = self._stamp()
        return json.loads(self._cached(tuple(round(v, 7) for v in box), int(zoom), stamp))

    def _stamp(self) -> int:
        try:
            return os.stat(self.path).st_mtime_ns
        except OSError as error:
            raise UserError(f"{self.path} is gone: {error.strerror}") from error

    def _read(self, box: tuple[float, ...], zoom: int, stamp: int) -> str:
        import pyogrio
        import shapely

        with explaining_polygons(self.path):
            bounds = self._bounds(Box(*box))
            meta, _, geometries, values = pyogrio.raw.read(
                self.path, layer=self.layer, bbox=bounds, max_features=MOST + 1
            )
        if len(geometries) > MOST:
            return json.dumps({"type": "FeatureCollection", "features": [], "many": True})
        with explaining_polygons(self.path):
            shapes = _drawable(shapely.from_wkb(geometries, on_invalid="ignore"))
            shapes = _drawable(shapely.transform(shapes, self._to_degrees), _FARTHEST)
            shapes = shapely.simplify(shapes, 360 / TILE / 2**zoom / 2)
        columns = {str(name): column for name, column in zip(meta["fields"], values, strict=True)}
        features = [
            {
                "type": "Feature",
                "geometry": json.loads(
                    shapely.to_geojson(shapely.set_precision(shape, 10**-_DIGITS, mode="pointwise"))
                ),
                "properties": {name: _plain(column[i]) for name, column in columns.items()},
            }
            for i, shape in enumerate(shapes)
            if shape is not None and not shape.is_empty
        ]
        return json.dumps({"type": "FeatureCollection", "features": features, "many": False})

    def _bounds(self, box: Box) -> tuple[float, float, float, float]:
        """The box in the file's own coordinates, a little too large rather than too small."""
        from rasterio.warp import transform_bounds

        turn = self.reference.turn
        if self.crs and turn and _is_geographic(self.crs):  # its longitudes may be of either side of the date line
            return (-_FARTHEST, box.south, _FARTHEST, box.north)
        if self.crs:
            return tuple(
                transform_bounds("EPSG:4326", self.crs, box.west + turn, box.south, box.east + turn, box.north)
            )
        corners = [(box.west, box.north), (box.east, box.north), (box.east, box.south), (box.west, box.south)]
        places = [self.reference.place(*corner) for corner in corners]
        points = np.array([self.reference.grid.ground(*place) for place in places])
        return (*points.min(0), *points.max(0))

    def _to_degrees(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        from rasterio.warp import transform

        if self.reference.in_pixels:
            columns, rows = self.reference.grid.pixel(*points.T)
            return np.array([to_degrees(x * PIXEL, -y * PIXEL) for x, y in zip(columns, rows, strict=True)])
        xs, ys = transform(self.crs or self.reference.grid.crs, "EPSG:4326", points[:, 0], points[:, 1])
        return np.stack([turned(np.array(xs), self.reference.turn), ys], axis=1)


def _crs_on_earth(about: dict[str, Any]) -> str:
    """The layer's reference system; none where it is of a site of its own, as the map's is then."""
    crs, bounds = about["crs"] or "", about["total_bounds"]
    if not crs or bounds is None or not np.isfinite(bounds).all():
        return str(crs)
    west, south, east, north = map(float, bounds)
    return str(crs) if on_earth(crs, (west + east) / 2, (south + north) / 2) else ""


def _is_geographic(crs: str) -> bool:
    from rasterio.crs import CRS

    return bool(CRS.from_user_input(crs).is_geographic)


def _drawable(shapes: NDArray[Any], farthest: float = np.finfo(np.float64).max) -> NDArray[Any]:
    """Without those that are nowhere, or so far away that GEOS does not come to an end with them."""
    import shapely

    shapes[~(np.abs(shapely.bounds(shapes)) <= farthest).all(axis=1)] = None
    return shapes


def _plain(value: Any) -> Any:
    """As JSON knows it."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, str | int | bool):
        return value
    return (value if value == value else None) if isinstance(value, float) else str(value)
