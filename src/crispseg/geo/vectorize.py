"""A class map on disk to polygons, read in strips."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.geo.gdal import bounded_cache
from crispseg.geo.landing import find_landing
from crispseg.geo.polygons import ENDINGS, PolygonChoice, polygon_file, write_polygons
from crispseg.geo.reader import explaining_damage, grid_of, open_raster, palette, raster_files
from crispseg.geo.regions import NODATA, MapRows, in_parts
from crispseg.geo.style import Style
from crispseg.geo.writer import spare_hues
from crispseg.outputs import claiming, refuse_inputs
from crispseg.raster.source import Window
from crispseg.reading import parse_json

_ROWS = 512
_APART = 0.5  # pixels between the corners of two maps of one place, at most


def vectorize_map(
    class_map: str,
    output: str,
    confidence: str | None = None,
    min_area: float = 0.0,
    simplify: float = 0.0,
    existing: str = "refuse",
) -> int | None:
    """Write the regions of a class map as polygons; gives their number.

    `existing` says what to do when `output` is there already: refuse, replace, or skip (then the number is None).
    """
    choice = PolygonChoice(output, min_area, simplify)
    landing, made_as = find_landing(output, endings=ENDINGS)
    target = Path(made_as)
    if target.suffix.lower() not in ENDINGS:
        raise UserError(f"polygons are written to {', '.join(ENDINGS)}, not {output}")
    with open_raster(class_map) as dataset:
        _check_class_map(dataset, class_map)
        grid = grid_of(dataset)
        style = read_style(dataset)
        if confidence is not None:
            check_fit(class_map, confidence)
            with open_raster(confidence) as sure:
                _check_steps(sure, confidence)
        refuse_inputs([target], [*raster_files(dataset, class_map), *([confidence] if confidence is not None else [])])

        rows = functools.partial(_rows, class_map, confidence)
        landing.check_writable()
        with claiming([target]) as places:
            if not landing.check_existing([target], existing):
                return None
            aside = places[target].making(polygon_file(target))
            try:
                with bounded_cache():  # not in the generator of rows, which may end later than it
                    count = write_polygons(rows, aside, target, grid, style, choice, confidence is not None)
                landing.put(aside, target, existing)
            finally:
                places[target].remove()
                landing.tidy()
    return count


def _check_class_map(dataset: Any, path: str) -> None:
    dtype = dataset.dtypes[0]
    if dataset.count != 1:
        raise UserError(f"{path} is no class map: it has {dataset.count} bands, and a class map has one, of class ids")
    if np.dtype(dtype).kind in "iu" and dtype != "uint8":
        target = shlex.join([path, f"{Path(path).stem}_8bit.tif"])
        raise UserError(
            f"{path} has class ids of {dtype}, and those of a class map are uint8: 0 to 254, and 255 for no data; if "
            f"its own fit (larger ones become 255, negative ones 0): gdal_translate -ot Byte {target}"
        )
    if dtype != "uint8":
        raise UserError(f"{path} is no class map: it has numbers of {dtype}, not class ids from 0 to 254")


def _rows(class_map: str, confidence: str | None) -> Iterator[MapRows]:
    with open_raster(class_map) as dataset:
        sure = open_raster(confidence) if confidence is not None else None
        try:
            for top in range(0, dataset.height, _ROWS):
                window = Window(top, 0, min(_ROWS, dataset.height - top), dataset.width)
                classes = read_classes(dataset, class_map, window)
                sureness = None if sure is None or confidence is None else _read(sure, confidence, window)
                yield from in_parts(MapRows(top, classes, sureness))
        finally:
            if sure is not None:
                sure.close()


def read_classes(dataset: Any, path: str, window: Window) -> NDArray[np.uint8]:
    """Class ids, NODATA where the map's nodata or its mask says that there are none."""
    classes = _read(dataset, path, window)
    with explaining_damage(path, window):
        classes[dataset.read_masks(1, window=_slices(window)) == 0] = NODATA
    return classes


def _read(dataset: Any, path: str, window: Window) -> NDArray[np.uint8]:
    with explaining_damage(path, window):
        rows: NDArray[np.uint8] = dataset.read(1, window=_slices(window))
    return rows


def _slices(window: Window) -> tuple[tuple[int, int], tuple[int, int]]:
    return (window.top, window.top + window.height), (window.left, window.left + window.width)


def read_style(dataset: Any) -> Style:
    """The names our maps carry in their tags and the colours of the map; other maps get numbers and hues."""
    try:
        named = {int(k): str(v) for k, v in parse_json(dataset.tags()["CLASSES"], "CLASSES").items()}
    except (KeyError, ValueError, AttributeError, UserError):
        named = {}
    names = tuple(named.get(k, f"class {k}") for k in range(NODATA))
    colours = palette(dataset)
    hues = spare_hues(NODATA)
    if colours is not None:
        hues = tuple((int(r), int(g), int(b)) for r, g, b, _ in colours[:NODATA])
    return Style(names, hues, tuple(k for k in sorted(named) if 0 <= k < NODATA))


def check_fit(class_map: str, confidence: str) -> None:
    """Refuse a confidence map that is none, or of another place than the class map."""
    with open_raster(class_map) as classes, open_raster(confidence) as sure:
        if sure.count != 1 or palette(sure) is not None:
            what = f"it has {sure.count} bands, not one" if sure.count != 1 else "its band is one of class ids"
            raise UserError(f"{confidence} is no confidence map: {what}")
        if (sure.height, sure.width) != (classes.height, classes.width):
            raise UserError(
                f"{confidence} is {sure.width} x {sure.height} pixels and {class_map} {classes.width} x "
                f"{classes.height}: they do not belong together"
            )
        here, there = grid_of(classes), grid_of(sure)
        corners = np.array([0, here.width]), np.array([0, here.height])
        apart = np.subtract(here.pixel(*there.ground(*corners)), corners)
        if there.has_transform and np.abs(apart).max() > _APART:
            raise UserError(f"{confidence} lies elsewhere than {class_map}: they do not belong together")


def _check_steps(dataset: Any, path: str) -> None:
    if dataset.dtypes[0] != "uint8":
        raise UserError(
            f"{path} has numbers of {dataset.dtypes[0]}, and those of a confidence map are uint8: 0 to 254 for 0 to 1"
        )
