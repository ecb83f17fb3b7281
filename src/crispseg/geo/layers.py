"""Files of polygons, written some thousand at a time: GeoPackage and FlatGeobuf by GDAL, GeoJSON and GeoParquet here.

GDAL writes the whole of a GeoJSON again to append to it, and the wheels of pyogrio have no GeoParquet.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.geo.crs_roundtrip import check_flatgeobuf_keeps
from crispseg.geo.grid import Grid
from crispseg.geo.lonlat import check_on_earth, to_lonlat
from crispseg.geo.ogr import heeding_failures
from crispseg.geo.style import Style, add_style_to_geopackage

LAYER = "classes"
Polygons = NDArray[Any]  # of shapely polygons, in the grid's reference system
Columns = dict[str, NDArray[Any]]


class Layer(Protocol):
    """A file with one layer. `append` is called once at least, if only with nothing."""

    def append(self, polygons: Polygons, columns: Columns) -> None: ...

    def next_batch(self, at_once: int) -> int:
        """How many polygons to bring next time."""
        ...

    def finish(self) -> None: ...

    def close(self) -> None:
        """Let go of the file, finished or not."""
        ...


def check_layer(path: Path, grid: Grid) -> None:
    """Refuse, before a scene is computed, what could not be written when it is."""
    if path.suffix.lower() == ".parquet":
        _need_pyarrow()
    if path.suffix.lower() == ".geojson" and grid.crs:
        check_on_earth(grid)
    if path.suffix.lower() == ".fgb":
        check_flatgeobuf_keeps(grid)


def _need_pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise UserError("GeoParquet needs pyarrow: pip install 'crispseg[parquet]', or write .fgb") from None
    return pyarrow


def open_layer(path: Path, grid: Grid, style: Style) -> Layer:
    check_layer(path, grid)
    if path.suffix == ".geojson":
        return _GeoJson(path, grid)
    if path.suffix == ".parquet":
        return _GeoParquet(path, grid)
    return _Ogr(path, grid, style)


class _Ogr:
    """GeoPackage or FlatGeobuf."""

    def __init__(self, path: Path, grid: Grid, style: Style):
        self.path, self.grid, self.style = path, grid, style
        self.count = 0
        self.ids = set(style.always)
        self.is_package = path.suffix == ".gpkg"

    def append(self, polygons: Polygons, columns: Columns) -> None:
        import pyogrio
        import shapely
        from pyogrio.errors import DataLayerError, DataSourceError, FeatureError

        outlines = shapely.to_wkb(polygons)
        # GeoPackage notes when it was written; the same map shall have the same bytes
        pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": "1970-01-01T00:00:00Z"})
        try:
            with warnings.catch_warnings(), heeding_failures():
                warnings.filterwarnings("ignore", "'crs' was not provided")  # the user was told already
                pyogrio.raw.write(
                    self.path,
                    geometry=outlines,
                    field_data=list(columns.values()),
                    fields=list(columns),
                    crs=self.grid.crs or None,
                    geometry_type="Polygon",
                    driver="GPKG" if self.is_package else "FlatGeobuf",
                    layer=LAYER,
                    append=self.count > 0,
                )
        except (DataLayerError, DataSourceError, FeatureError) as error:
            if not self.is_package and not self._has_room(sum(map(len, outlines))):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise
        finally:
            pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": None})
        self.count += len(polygons)
        self.ids.update(columns["class_id"].tolist())

    def _has_room(self, more: int) -> bool:
        """Whether so many bytes of outlines, with their columns, can be added to a FlatGeobuf, whose driver does not
        say why it could not write; it writes all anew and has removed that by now."""
        before = self.path.stat().st_size if self.path.exists() else 0
        return shutil.disk_usage(self.path.parent).free > before + 2 * more

    def next_batch(self, at_once: int) -> int:
        """GDAL writes the whole of a FlatGeobuf again to append: seldom enough, that costs little."""
        return at_once if self.is_package else max(at_once, self.count // 4)

    def finish(self) -> None:
        if self.is_package:
            add_style_to_geopackage(self.path, LAYER, self.style.vector_qml(sorted(self.ids)))

    def close(self) -> None:
        """GDAL holds nothing open."""


class _GeoJson:
    """RFC 7946: longitudes and latitudes of WGS 84, outer rings anticlockwise, nothing across the date line.

    A map without a reference system has pixels instead; there is nothing to convert them to.
    """

    def __init__(self, path: Path, grid: Grid):
        self.grid = grid
        self._file = path.open("w", encoding="utf-8")
        self._file.write(f'{{\n"type": "FeatureCollection",\n"name": "{LAYER}",\n"features": [')
        self._separator = "\n"

    def append(self, polygons: Polygons, columns: Columns) -> None:
        import shapely

        shown = to_lonlat(polygons, self.grid) if self.grid.crs else shapely.orient_polygons(polygons)
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        for geometry, row in zip(shapely.to_geojson(shown), rows, strict=True):
            properties = json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False)
            self._file.write(
                f'{self._separator}{{"type": "Feature", "properties": {properties}, "geometry": {geometry}}}'
            )
            self._separator = ",\n"

    def next_batch(self, at_once: int) -> int:
        return at_once

    def finish(self) -> None:
        self._file.write("\n]\n}\n")
        self._file.close()

    def close(self) -> None:
        self._file.close()


class _GeoParquet:
    """GeoParquet 1.1: geometry as WKB, the reference system as PROJJSON, one row group per batch."""

    def __init__(self, path: Path, grid: Grid):
        self._arrow, self.path, self.grid = _need_pyarrow(), path, grid
        self._writer: Any = None

    def append(self, polygons: Polygons, columns: Columns) -> None:
        import shapely

        arrow = self._arrow
        outlines = shapely.to_wkb(shapely.orient_polygons(polygons))
        table = arrow.table({**columns, "geometry": arrow.array(outlines, arrow.binary())})
        table = table.replace_schema_metadata({"geo": json.dumps(self._about())})
        if self._writer is None:
            self._writer = arrow.parquet.ParquetWriter(self.path, table.schema, compression="zstd")
        self._writer.write_table(table)

    def next_batch(self, at_once: int) -> int:
        return at_once

    def finish(self) -> None:
        """The footer is written when the file is closed."""

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _about(self) -> dict[str, Any]:
        from rasterio.crs import CRS

        column = {
            "encoding": "WKB",
            "geometry_types": ["Polygon"],
            "crs": CRS.from_wkt(self.grid.crs).to_dict(projjson=True) if self.grid.crs else None,
            "orientation": "counterclockwise",
        }
        return {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": column}}
