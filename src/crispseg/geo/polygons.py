"""Class regions to a vector file (GeoPackage, GeoJSON, FlatGeobuf), made and written piece by piece."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.geo.grid import Grid
from crispseg.geo.regions import Finished, MapRows, find_regions
from crispseg.geo.sieve import sieved
from crispseg.geo.writer import explaining_failure
from crispseg.predict.products import SURE

DRIVERS = {".gpkg": "GPKG", ".geojson": "GeoJSON", ".fgb": "FlatGeobuf"}
_AT_ONCE = 20_000  # regions written in one go


@dataclasses.dataclass(frozen=True)
class PolygonChoice:
    """`to` is a file, or just its ending to put it beside the map. Sizes are in metres (pixels without a CRS)."""

    to: str
    min_area: float = 0.0
    simplify: float = 0.0

    def __post_init__(self) -> None:
        ending = f".{self.to.lower().rpartition('.')[2]}"
        if ending not in DRIVERS:
            raise UserError(f"polygons are written to {', '.join(DRIVERS)}, not {self.to}")
        if self.min_area < 0 or self.simplify < 0:
            raise UserError("the minimum area and the simplification must not be negative")

    def path(self, target: Path) -> Path:
        if self.to.lower().lstrip(".") in {ending[1:] for ending in DRIVERS}:
            return target.with_suffix(f".{self.to.lower().lstrip('.')}")
        return Path(self.to)


def write_polygons(
    bands: Callable[[], Iterable[MapRows]],
    path: Path,
    grid: Grid,
    classes: tuple[str, ...],
    choice: PolygonChoice,
    with_confidence: bool = True,
) -> tuple[Path, int]:
    """Write the regions of a map, read twice if small ones are to be merged.

    Gives the finished file, to be renamed `path`, and the number of regions.
    """
    from pyogrio.errors import DataLayerError, DataSourceError, FeatureError

    aside = path.with_name(f".{path.stem}.crisp{path.suffix.lower()}")
    tolerance = choice.simplify / (math.sqrt(math.prod(grid.pixel_size())) if grid.area_unit == "m2" else 1.0)
    try:
        with explaining_failure(path, DataLayerError, DataSourceError, FeatureError):
            path.parent.mkdir(parents=True, exist_ok=True)
            aside.unlink(missing_ok=True)
            rows = sieved(bands, grid, choice.min_area) if choice.min_area else bands()
            layer = _Layer(aside, grid, classes, with_confidence)
            layer.write(find_regions(rows, grid, tolerance))
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    return aside, layer.count


@dataclasses.dataclass
class _Layer:
    """The file's one layer, written some thousand regions at a time."""

    path: Path
    grid: Grid
    classes: tuple[str, ...]
    with_confidence: bool
    count: int = 0

    def write(self, regions: Iterator[Finished]) -> None:
        import pyogrio

        # GeoPackage notes when it was written; the same map shall have the same bytes
        pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": "1970-01-01T00:00:00Z"})
        try:
            self._append(list(itertools.islice(regions, _AT_ONCE)))
            while some := list(itertools.islice(regions, self._next_batch())):
                self._append(some)
        finally:
            pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": None})

    def _next_batch(self) -> int:
        """GDAL writes the whole of a FlatGeobuf or GeoJSON again to append: seldom enough, that costs little."""
        return _AT_ONCE if self.path.suffix == ".gpkg" else max(_AT_ONCE, self.count // 4)

    def _append(self, regions: list[Finished]) -> None:
        import shapely
        from pyogrio.raw import write

        polygons = shapely.transform(np.array([region.polygon for region in regions], object), self._on_ground)
        columns: dict[str, Any] = {
            "class_id": np.array([region.class_id for region in regions], np.int32),
            "class": np.array([self.classes[region.class_id] for region in regions], object),
            "area": np.array([region.area for region in regions], float),
        }
        if self.with_confidence:
            columns["confidence"] = np.array([region.confidence / SURE for region in regions], float)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "'crs' was not provided")  # the user was told already
            write(
                self.path,
                geometry=shapely.to_wkb(polygons),
                field_data=list(columns.values()),
                fields=list(columns),
                crs=self.grid.crs or None,
                geometry_type="Polygon",
                driver=DRIVERS[self.path.suffix],
                layer="classes",
                append=self.count > 0,
            )
        self.count += len(regions)

    def _on_ground(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        a, b, c, d, e, f = self.grid.transform
        x, y = points.T
        return np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)
