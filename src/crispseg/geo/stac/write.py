"""The STAC item beside a map: where it lies, what its classes are, what it was made from.

The machine learning extension (mlm) describes models, and asks for the model itself as an asset; a map has none, so
the model is told by name and version.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crispseg import __version__
from crispseg.geo import store
from crispseg.geo.grid import Grid
from crispseg.geo.lonlat import footprint
from crispseg.geo.maps import Legend
from crispseg.geo.stac.read import SourceItem, need_pystac
from crispseg.geo.writer import NODATA

_TYPES = {
    ".tif": "image/tiff; application=geotiff; profile=cloud-optimized",
    ".tiff": "image/tiff; application=geotiff; profile=cloud-optimized",
    ".gpkg": "application/geopackage+sqlite3",
    ".geojson": "application/geo+json",
    ".fgb": "application/vnd.flatgeobuf",
    ".parquet": "application/vnd.apache.parquet",
    ".xml": "application/xml",
    ".qml": "application/xml",
}
_TITLES = {
    "classes": "Class map",
    "confidence": "Probability of the class given, 0 to 254",
    "probabilities": "Probability of every class, 0 to 254",
    "boundaries": "1 where classes meet",
    "polygons": "Regions of the class map",
    "gdal_style": "Names and colours of the classes for GDAL",
    "qgis_style": "Style for QGIS",
}


def item_path(target: Path) -> Path:
    return target.with_name(f"{target.stem}.stac.json")


@dataclasses.dataclass(frozen=True)
class Made:
    """All that an item tells of."""

    grid: Grid
    legend: Legend
    outputs: Mapping[str, Path]
    scene: str
    read: str  # which bands, at which scale
    source: SourceItem | None = None


def map_item(made: Made) -> str:
    """The item as JSON. Its assets are named relative to it."""
    pystac = need_pystac()
    outline = footprint(made.grid) if made.grid.crs else None
    item = pystac.Item(
        id=made.outputs["classes"].stem,
        geometry=None if outline is None else _as_geojson(outline),
        bbox=None if outline is None else _bbox(outline),
        **_times(made),
    )
    _tell_grid(item, made.grid)
    for what, path in made.outputs.items():
        if path != item_path(made.outputs["classes"]):
            _add_asset(item, what, path, made)
    if made.source is not None and made.source.href:
        item.add_link(pystac.Link("derived_from", made.source.href, "application/json", made.source.id))
    return json.dumps(item.to_dict(include_self_link=False), indent=2, ensure_ascii=False) + "\n"


def _times(made: Made) -> dict[str, Any]:
    """Those of the item the scene came from; otherwise the time the scene's file was written: items must have one."""
    properties: dict[str, Any] = {
        "crispseg:model": made.legend.model,
        "crispseg:model_version": made.legend.version,
        "crispseg:version": __version__,
        "crispseg:scene": made.scene,
        "crispseg:read": made.read,
    }
    if made.source is not None:
        kept = dict(made.source.properties)
        when = kept.pop("datetime", None)
        return {"datetime": _moment(when) if when else None, "properties": {**properties, **kept}}
    written = _written_at(made.scene)
    about = "that at which the scene's file was written" if written else "not known; it stands for none"
    properties["description"] = f"The time is {about}."
    return {"datetime": written or datetime.datetime.fromtimestamp(0, datetime.UTC), "properties": properties}


def _written_at(scene: str) -> datetime.datetime | None:
    if os.path.exists(scene):
        return datetime.datetime.fromtimestamp(int(os.path.getmtime(scene)), datetime.UTC)
    return store.written_at(scene) if store.is_remote(scene) else None


def _moment(text: str) -> datetime.datetime:
    from pystac.utils import str_to_datetime

    return str_to_datetime(text)


def _tell_grid(item: Any, grid: Grid) -> None:
    from pystac.extensions.projection import ProjectionExtension
    from rasterio.crs import CRS

    system = CRS.from_wkt(grid.crs) if grid.crs else None
    code = ":".join(system.to_authority() or ()) if system else ""
    ProjectionExtension.ext(item, add_if_missing=True).apply(
        code=code or None,
        wkt2=system.to_wkt(version="WKT2_2019") if system and not code else None,
        shape=[grid.height, grid.width],
        transform=list(grid.transform),
    )


def _add_asset(item: Any, what: str, path: Path, made: Made) -> None:
    import pystac

    role = "metadata" if what.endswith("_style") else "data"
    media = _TYPES.get(path.suffix.lower())
    beside = path.parent == made.outputs["classes"].parent
    href = f"./{path.name}" if beside else str(path.absolute())
    item.add_asset(what, pystac.Asset(href, _TITLES.get(what), media_type=media, roles=[role]))
    if path.suffix.lower() in (".tif", ".tiff"):
        _tell_bands(item.assets[what], what, made)
    if what == "classes":
        _tell_classes(item.assets[what], made.legend)


def _tell_bands(asset: Any, what: str, made: Made) -> None:
    from pystac.extensions.raster import DataType, RasterBand, RasterExtension, Sampling

    share = what in ("confidence", "probabilities")
    size = max(made.grid.pixel_size()) if made.grid.area_unit == "m2" else None
    band = RasterBand.create(
        nodata=NODATA,
        data_type=DataType.UINT8,
        sampling=Sampling.POINT if made.grid.is_point else Sampling.AREA,
        spatial_resolution=size,
        scale=1 / 254 if share else None,
    )
    count = len(made.legend.classes) if what == "probabilities" else 1
    RasterExtension.ext(asset, add_if_missing=True).apply([band] * count)


def _tell_classes(asset: Any, legend: Legend) -> None:
    from pystac.extensions.classification import Classification, ClassificationExtension

    classes = [
        Classification.create(
            value=k,
            name=_word(name, k),
            description=name,
            color_hint="{:02X}{:02X}{:02X}".format(*legend.palette[k]),
        )
        for k, name in enumerate(legend.classes)
    ]
    nothing = Classification.create(value=NODATA, name="nodata", description="the scene has no data here")
    nothing.properties["nodata"] = True
    ClassificationExtension.ext(asset, add_if_missing=True).apply(classes=[*classes, nothing])


def _word(name: str, k: int) -> str:
    """The extension allows letters, digits, - and _ only; the name itself is the description."""
    plain = re.sub(r"[^0-9A-Za-z_-]+", "_", name).strip("_")
    return plain or f"class_{k}"


def _as_geojson(outline: Any) -> dict[str, Any]:
    import shapely

    found: dict[str, Any] = json.loads(shapely.to_geojson(outline))
    return found


def _bbox(outline: Any) -> list[float]:
    """West, south, east, north; east is less than west where the date line is between them."""
    import shapely

    parts = shapely.get_parts(outline)
    bounds = shapely.bounds(parts)
    south, north = float(bounds[:, 1].min()), float(bounds[:, 3].max())
    if len(parts) == 1:
        return [float(bounds[0, 0]), south, float(bounds[0, 2]), north]
    east_side = bounds[:, 2] == 180
    west, east = float(bounds[east_side, 0].min()), float(bounds[~east_side, 2].max())
    return [west, south, east, north] if east < west else [-180.0, south, 180.0, north]  # else it goes round the world
