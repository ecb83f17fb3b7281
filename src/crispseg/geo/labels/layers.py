"""Polygons that somebody has drawn: read from any file OGR reads, mended, and brought onto an image's pixels."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError, nearest
from crispseg.geo.grid import Grid
from crispseg.reading import plainly, require_file

_POLYGONS = (3, 6)  # shapely's numbers of Polygon and MultiPolygon
_DENSIFY_PIXELS = 64  # between points of a side, before it goes to another reference system, where it is a curve
# Text that makes OGR read other files or the network instead of the file that was named
_INDIRECT = (b"<OGRVRTDataSource", b"<OGRWFSDataSource", b"<OGRCSWDataSource", b"gdal_streamed_alg")


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Polygons in an image's pixel coordinates, with their place in the layer, their value, and their rank."""

    polygons: NDArray[Any]
    features: NDArray[np.int64]  # numbers in the layer
    values: NDArray[Any]  # of the field, None where it has none
    ranks: NDArray[np.float64]  # of the field that orders them, else the place in the layer


@dataclasses.dataclass
class Faults:
    """Features that were mended or left out, each told in one sentence."""

    kinds: dict[str, set[int]] = dataclasses.field(default_factory=dict)

    def add(self, kind: str, features: Sequence[int] | NDArray[np.int64]) -> None:
        if len(features):
            self.kinds.setdefault(kind, set()).update(int(feature) for feature in features)

    def sentences(self, where: str) -> list[str]:
        return [f"{where}: {_counted(features)} {kind}" for kind, features in self.kinds.items()]


EMPTY = "without any area, left out"
MENDED = "with invalid rings (they cross or touch themselves), mended"
LOST = "that the image's reference system cannot show, left out"
UNNAMED = "without a value in the field: what they cover is ignored"


class LabelLayer:
    """One layer of polygons. `field` holds the classes; `order` may name a field whose larger numbers lie on top."""

    def __init__(self, path: str, layer: str = "", field: str = "", crs: str = "", order: str = ""):
        import pyogrio

        self.path, self.field, self.order = path, field, order
        self.faults = Faults()
        check_vector_file(path)
        with explaining_polygons(path):
            self.layer = layer or _only_polygon_layer(path)
            self.info = pyogrio.read_info(path, layer=self.layer)
        said = crs or str(self.info["crs"] or "")
        self.crs = _user_crs(said) if said else ""
        for name in filter(None, (field, order)):
            self._require_field(name)

    def values(self) -> list[Any]:
        """The distinct values of the field, in a natural order: numbers by size, words by their letters."""
        column = self._read([self.field], read_geometry=False)[3][0]
        found = {_plain(value) for value in column.tolist()} - {None}
        return sorted(found, key=lambda v: (isinstance(v, str), v))

    def on(self, grid: Grid, name: str) -> Shapes:
        """The polygons that touch the image `name`, on its pixels."""
        import shapely

        self._check_reference(grid, name)
        columns = [word for word in dict.fromkeys((self.field, self.order)) if word]
        meta, features, geometry, data = self._read(columns, bbox=self.bounds(grid, name))
        fields = dict(zip(meta["fields"], data, strict=True))
        values = np.array(
            [_plain(v) for v in fields[self.field].tolist()] if self.field else [1] * len(features), object
        )
        ranks = self._ranks(fields[self.order], features) if self.order else features.astype(float)
        polygons = self._mended(shapely.from_wkb(geometry, on_invalid="ignore"), features)
        polygons = self._on_pixels(polygons, features, grid, name)
        keep = ~(shapely.is_missing(polygons) | shapely.is_empty(polygons))
        keep &= shapely.intersects(shapely.box(0, 0, grid.width, grid.height), polygons)
        self.faults.add(UNNAMED, features[keep & np.array([v is None for v in values], bool)])
        return Shapes(polygons[keep], features[keep], values[keep], ranks[keep])

    def _read(self, columns: list[str], **options: Any) -> Any:
        from pyogrio.raw import read

        with explaining_polygons(self.path), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read(self.path, layer=self.layer, columns=columns, return_fids=True, **options)

    def _require_field(self, name: str) -> None:
        fields = list(self.info["fields"])
        if name not in fields:
            there = nearest(name, fields) or f"; it has {', '.join(fields) or 'no fields'}"
            raise UserError(f"{self.path} (layer {self.layer}) has no field {name!r}{there}")
        if "List" in self.info["ogr_types"][fields.index(name)]:
            raise UserError(f"{self.path} (layer {self.layer}): field {name!r} holds lists, not one value per polygon")

    def _ranks(self, column: NDArray[Any], features: NDArray[np.int64]) -> NDArray[np.float64]:
        try:
            ranks = column.astype(np.float64)
        except (TypeError, ValueError):
            ranks = np.full(len(column), np.nan)
        if np.isnan(ranks).any():
            one = int(features[int(np.isnan(ranks).argmax())])
            raise UserError(
                f"{self.path}: field {self.order!r} orders the polygons, but feature {one} has no number there"
            )
        return ranks

    def _check_reference(self, grid: Grid, name: str) -> None:
        if grid.crs and not self.crs:
            raise UserError(
                f"{self.path} has no coordinate reference system; say which it is drawn in, e.g. --labels-crs EPSG:4326"
            )
        if self.crs and not grid.crs:
            raise UserError(f"{name} {grid.lack}, so polygons in {short_crs(self.crs)} cannot be put on it")

    def is_elsewhere(self, grid: Grid) -> bool:
        """Whether the polygons must be brought to another reference system."""
        from rasterio.crs import CRS

        return bool(grid.crs) and CRS.from_user_input(self.crs) != CRS.from_wkt(grid.crs)

    def bounds(self, grid: Grid, name: str) -> tuple[float, float, float, float]:
        """The image's outline in the layer's reference system."""
        import rasterio
        from rasterio._err import CPLE_BaseError
        from rasterio.crs import CRS
        from rasterio.errors import RasterioError
        from rasterio.warp import transform_bounds

        corners = _ground(np.array([(0, 0), (0, grid.height), (grid.width, 0), (grid.width, grid.height)], float), grid)
        (left, bottom), (right, top) = corners.min(axis=0), corners.max(axis=0)
        if not self.is_elsewhere(grid):
            return left, bottom, right, top
        try:
            there = CRS.from_user_input(self.crs)
            with rasterio.Env():  # without it GDAL prints its errors, too
                moved: Any = transform_bounds(CRS.from_wkt(grid.crs), there, left, bottom, right, top, densify_pts=21)
            return moved
        except (RasterioError, CPLE_BaseError) as error:
            raise UserError(
                f"{self.path} is in {short_crs(self.crs)}, which cannot be brought onto {name} in "
                f"{short_crs(grid.crs)}; draw the polygons in the image's own reference system"
            ) from error

    def _mended(self, polygons: NDArray[Any], features: NDArray[np.int64]) -> NDArray[Any]:
        import shapely

        polygons = shapely.force_2d(polygons)
        kinds = shapely.get_type_id(polygons)
        other = (kinds >= 0) & ~np.isin(kinds, _POLYGONS)
        if other.any():
            kind = polygons[int(other.argmax())].geom_type
            raise UserError(
                f"{self.path}: feature {int(features[int(other.argmax())])} is a {kind}; labels must be polygons"
            )
        invalid = ~shapely.is_valid(polygons) & (kinds >= 0)
        polygons[invalid] = [_polygonal(p) for p in shapely.make_valid(polygons[invalid], method="structure")]
        hollow = shapely.is_missing(polygons) | (shapely.area(polygons) == 0)
        self.faults.add(MENDED, features[invalid & ~hollow])
        self.faults.add(EMPTY, features[hollow])
        polygons[hollow] = None
        return polygons

    def _on_pixels(self, polygons: NDArray[Any], features: NDArray[np.int64], grid: Grid, name: str) -> NDArray[Any]:
        import shapely

        if self.is_elsewhere(grid):
            left, bottom, right, top = self.bounds(grid, name)
            pixel = max((right - left) / grid.width, (top - bottom) / grid.height)
            polygons = shapely.segmentize(polygons, pixel * _DENSIFY_PIXELS)
        moved = shapely.transform(polygons, lambda points: self._pixels(points, grid))
        lost = ~np.isfinite(shapely.bounds(moved)).all(axis=1) & ~shapely.is_missing(moved)
        self.faults.add(LOST, features[lost])
        moved[lost] = None
        invalid = ~shapely.is_valid(moved) & ~shapely.is_missing(moved)
        moved[invalid] = [_polygonal(p) for p in shapely.make_valid(moved[invalid], method="structure")]
        return moved

    def _pixels(self, points: NDArray[np.float64], grid: Grid) -> NDArray[np.float64]:
        from rasterio import Affine
        from rasterio.crs import CRS
        from rasterio.warp import transform

        if not len(points):
            return points
        x, y = points.T
        if self.is_elsewhere(grid):
            x, y = map(np.array, transform(CRS.from_user_input(self.crs), CRS.from_wkt(grid.crs), x, y))
        a, b, c, d, e, f = tuple(~Affine(*grid.transform))[:6]
        return np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)


def short_crs(crs: str) -> str:
    """EPSG:32633 rather than a page of WKT."""
    from rasterio.crs import CRS

    found = CRS.from_user_input(crs)
    return ":".join(found.to_authority() or ("", "")).strip(":") or str(found.to_wkt()).split('"')[1]


def _user_crs(word: str) -> str:
    from rasterio.crs import CRS
    from rasterio.errors import CRSError

    try:
        return str(CRS.from_user_input(word).to_wkt())
    except (CRSError, ValueError) as error:
        raise UserError(f"{word[:80]!r} names no coordinate reference system; try EPSG:4326 or the like") from error


@contextlib.contextmanager
def explaining_polygons(path: str) -> Iterator[None]:
    """Turn what OGR, PROJ and GEOS say about a file, and names and values in it that are no text, into one sentence."""
    from pyogrio.errors import DataLayerError, DataSourceError
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioError
    from shapely.errors import ShapelyError

    told = (DataSourceError, DataLayerError, CPLE_BaseError, RasterioError, ShapelyError, UnicodeDecodeError)
    try:
        yield
    except told as error:
        said = " ".join(str(error).split()).partition("; It might help")[0].rstrip(".")  # of drivers we do not take
        raise UserError(
            f"{path} cannot be read as polygons: {(not os.path.isdir(path) and plainly(path)) or said}"
        ) from error


def check_vector_file(path: str) -> None:
    if not os.path.exists(path):
        raise UserError(f"there is no file {path}")
    if not os.path.isdir(path):  # some formats are folders
        require_file(path, "file of polygons")
        with open(path, "rb") as file:
            start = file.read(4096)
        if any(word in start for word in _INDIRECT):
            raise UserError(f"{path} holds no polygons itself but names another source; give that file")
        if start.startswith(b"PAR1") and not _reads_parquet():
            raise UserError(f"{path} is GeoParquet, which GDAL cannot read here; give a .gpkg, .fgb or .geojson")


def _reads_parquet() -> bool:
    import pyogrio

    return "Parquet" in pyogrio.list_drivers()


def _only_polygon_layer(path: str) -> str:
    import pyogrio

    layers = [(str(name), str(kind)) for name, kind in pyogrio.list_layers(path) if kind is not None]
    with_polygons = [name for name, kind in layers if "Polygon" in kind or "Unknown" in kind or "Surface" in kind]
    if not with_polygons:
        there = ", ".join(f"{name} ({kind})" for name, kind in layers) or "no layers"
        raise UserError(f"{path} has no layer of polygons; it has {there}")
    if len(with_polygons) > 1:
        raise UserError(f"{path} has several layers of polygons; choose with --layer: {', '.join(with_polygons)}")
    return with_polygons[0]


def _polygonal(geometry: Any) -> Any:
    """What of a mended geometry has an area."""
    import shapely

    parts = [p for p in shapely.get_parts(shapely.get_parts(geometry)) if p.geom_type == "Polygon" and not p.is_empty]
    return shapely.MultiPolygon(parts) if parts else None


def _ground(points: NDArray[np.float64], grid: Grid) -> NDArray[np.float64]:
    a, b, c, d, e, f = grid.transform
    x, y = points.T
    return np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)


def _plain(value: Any) -> Any:
    """A field's value as a class name can be told from: no NaN, no 1.0 for 1, no blanks around a word."""
    if value is None or value != value:
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return (value.strip() or None) if isinstance(value, str) else value


def _counted(features: set[int]) -> str:
    some = sorted(features)
    named = ", ".join(map(str, some[:5])) + (", ..." if len(some) > 5 else "")
    return f"{len(some)} polygon{'s' * (len(some) > 1)} (feature{'s' * (len(some) > 1)} {named})"
