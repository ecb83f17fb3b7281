"""Class regions to a vector file (GeoPackage, GeoJSON, FlatGeobuf, GeoParquet), made and written piece by piece."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.geo.grid import Grid
from crispseg.geo.layers import Columns, Layer, Polygons, open_layer
from crispseg.geo.regions import Finished, MapRows, find_regions
from crispseg.geo.sieve import sieved
from crispseg.geo.style import Style
from crispseg.geo.writer import explaining_failure
from crispseg.raster.products import SURE

ENDINGS = (".gpkg", ".geojson", ".fgb", ".parquet")
_AT_ONCE = 20_000  # regions written in one go


@dataclasses.dataclass(frozen=True)
class PolygonChoice:
    """`to` is a file, or just its ending to put it beside the map. Sizes are in metres (pixels without a CRS)."""

    to: str
    min_area: float = 0.0
    simplify: float = 0.0

    def __post_init__(self) -> None:
        ending = f".{self.to.lower().rpartition('.')[2]}"
        if ending not in ENDINGS:
            raise UserError(f"polygons are written to {', '.join(ENDINGS)}, not {self.to}")
        if not (0 <= self.min_area < math.inf and 0 <= self.simplify < math.inf):
            raise UserError("the minimum area and the simplification are finite numbers that must not be negative")

    def path(self, target: Path) -> Path:
        if self.to.lower().lstrip(".") in {ending[1:] for ending in ENDINGS}:
            return target.with_suffix(f".{self.to.lower().lstrip('.')}")
        return Path(self.to)


def polygon_file(path: Path) -> str:
    """A name for the unfinished file: GDAL chooses the format by its ending."""
    return f"{path.stem}{path.suffix.lower()}"


def write_polygons(
    bands: Callable[[], Iterable[MapRows]],
    aside: Path,
    path: Path,
    grid: Grid,
    style: Style,
    choice: PolygonChoice,
    with_confidence: bool = True,
) -> int:
    """Write the regions of a map, read twice if small ones are to be merged, to the new file `aside`.

    It is to be renamed `path`, the name that errors speak of. Gives the number of regions.
    """
    from pyogrio.errors import DataLayerError, DataSourceError, FeatureError

    tolerance = choice.simplify / (math.sqrt(math.prod(grid.pixel_size())) if grid.area_unit == "m2" else 1.0)
    try:
        with explaining_failure(path, DataLayerError, DataSourceError, FeatureError, sqlite3.Error):
            rows = sieved(bands, grid, choice.min_area) if choice.min_area else bands()
            regions = find_regions(rows, grid, tolerance)
            count = _write(open_layer(aside, grid, style), regions, grid, style, with_confidence)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    return count


def _write(layer: Layer, regions: Iterator[Finished], grid: Grid, style: Style, with_confidence: bool) -> int:
    count = 0
    try:
        layer.append(*_as_features(some := list(itertools.islice(regions, _AT_ONCE)), grid, style, with_confidence))
        while some:
            count += len(some)
            if some := list(itertools.islice(regions, layer.next_batch(_AT_ONCE))):
                layer.append(*_as_features(some, grid, style, with_confidence))
        layer.finish()
    finally:
        layer.close()
    return count


def _as_features(regions: list[Finished], grid: Grid, style: Style, with_confidence: bool) -> tuple[Polygons, Columns]:
    import shapely

    a, b, c, d, e, f = grid.transform

    def on_ground(points: NDArray[np.float64]) -> NDArray[np.float64]:
        x, y = points.T
        return np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)

    columns: Columns = {
        "class_id": np.array([region.class_id for region in regions], np.int32),
        "class": np.array([style.classes[region.class_id] for region in regions], object),
        "area": np.array([region.area for region in regions], float),
    }
    if with_confidence:
        columns["confidence"] = np.array([region.confidence / SURE for region in regions], float)
    return shapely.transform(np.array([region.polygon for region in regions], object), on_ground), columns
