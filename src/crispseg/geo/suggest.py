"""Windows worth labelling: where a map is least sure of itself, as a GeoPackage with the prediction to start from.

The file has two layers: `labels`, the predicted regions inside the windows, to be corrected; and `windows`, which say
where the labels are complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.files import refuse_remote
from crispseg.geo import store
from crispseg.geo.gdal import bounded_cache
from crispseg.geo.grid import Grid
from crispseg.geo.ogr import heeding_failures
from crispseg.geo.reader import explaining_damage, grid_of, open_raster
from crispseg.geo.regions import MapRows, find_regions
from crispseg.geo.style import add_style_to_geopackage
from crispseg.geo.vectorize import check_fit, read_classes, read_style
from crispseg.geo.writer import NODATA, explaining_failure
from crispseg.outputs import making, refuse_inputs, there
from crispseg.raster.products import SURE
from crispseg.raster.source import Window

LABELS, WINDOWS = "labels", "windows"
_ROWS = 512  # read together
_PARTS = 4  # a window is tried at every fourth of its side
_LEAST_DATA = 0.5  # of a window's pixels
_SLACK = 1e-3  # a softmax in half precision may miss 1 by so much


class Chosen(NamedTuple):
    """A window of the map in pixels, and the mean confidence in it where that is known (0 to 1)."""

    top: int
    left: int
    height: int
    width: int
    confidence: float | None


def suggest(
    class_map: str,
    confidence: str | None = None,
    count: int = 20,
    side: int = 512,
    out: str | None = None,
    existing: str = "refuse",
) -> tuple[Path, list[Chosen]]:
    """Write the `count` least certain windows of a map, none over another, beside it or to `out`.

    `existing` says what to do when that file is there already: refuse or replace.
    """
    if count < 1 or side < 8:
        raise UserError(f"at least one window of 8 px is needed, not {count} of {side} px")
    target = Path(out) if out is not None else Path(class_map).with_name(f"{Path(class_map).stem}_windows.gpkg")
    refuse_remote(target)
    if target.suffix.lower() != ".gpkg":
        raise UserError(f"windows are written to a .gpkg file, which holds both layers, not {target}")
    if there(target) and existing != "replace":
        raise UserError(
            f"{target} is there already, perhaps with corrections; choose another name with -o, or say "
            "--existing replace"
        )
    sure = confidence or _beside(class_map)
    refuse_inputs([target], [class_map, sure])
    check_fit(class_map, sure)
    chosen = least_certain(sure, count, side)
    if not chosen:
        if not _has_data(sure):
            raise UserError(f"{sure} has no data anywhere, so no window of it is worth labelling")
        raise UserError(f"{sure} has no window of {side} px with data in at least half of it; choose a smaller --side")
    with making(target, existing) as aside:
        aside.write_bytes(windows_package(class_map, sure, chosen))
    return target, chosen


def _beside(class_map: str) -> str:
    """The confidence map that `crisp predict --confidence` puts beside its map."""
    stem, ending = os.path.splitext(class_map)
    found = f"{stem}_confidence{ending}"
    if not (store.exists(found) if store.is_remote(found) else os.path.exists(found)):
        raise UserError(
            f"there is no {found}, which says where the map is unsure; make it with crisp predict --confidence, or "
            "name another with --confidence"
        )
    return found


def least_certain(confidence: str, count: int, side: int) -> list[Chosen]:
    """Windows from the least certain upwards; of those that overlap the least certain one is kept."""
    with open_raster(confidence) as dataset:
        height, width = dataset.height, dataset.width
        step = max(1, min(side, height, width) // _PARTS)
        doubt, pixels = _cell_sums(dataset, confidence, step)
    tall, wide = (max(1, min(_PARTS, cells)) for cells in doubt.shape)
    doubts, present = (_box_sums(cells, tall, wide) for cells in (doubt, pixels))
    enough = present >= _LEAST_DATA * tall * wide * step * step
    mean = np.where(enough, doubts / np.maximum(present, 1), -1.0)
    picked: list[Chosen] = []
    for flat in np.argsort(-mean, axis=None, kind="stable"):
        row, column = np.unravel_index(flat, mean.shape)
        if mean[row, column] < 0 or len(picked) == count:
            break
        window = Chosen(int(row) * step, int(column) * step, tall * step, wide * step, 1 - float(mean[row, column]))
        if not any(_overlap(window, other) for other in picked):
            picked.append(window)
    return picked


def _cell_sums(dataset: Any, path: str, step: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Of every cell of step x step pixels: the summed doubt (1 - confidence), and how many pixels have data.

    What is left at the right and lower edge, less than a cell, is not looked at.
    """
    rows, columns = dataset.height // step, dataset.width // step
    doubt, pixels = np.zeros((rows, columns)), np.zeros((rows, columns), np.int64)
    with bounded_cache():
        for row in range(rows):
            window = Window(row * step, 0, step, columns * step)
            with explaining_damage(path, window):
                values = dataset.read(1, window=((window.top, window.top + step), (0, window.width)))
            known = _known(dataset, values)
            share = values / (SURE if values.dtype == np.uint8 else 1)
            unsure = np.where(known, 1 - share, 0)
            _refuse_other_numbers(path, unsure)
            doubt[row] = unsure.reshape(step, columns, step).sum((0, 2))
            pixels[row] = known.reshape(step, columns, step).sum((0, 2))
    return doubt, pixels


def _has_data(path: str) -> bool:
    with open_raster(path) as dataset, bounded_cache():
        for top in range(0, dataset.height, _ROWS):
            window = Window(top, 0, min(_ROWS, dataset.height - top), dataset.width)
            with explaining_damage(path, window):
                values = dataset.read(1, window=((top, top + window.height), (0, window.width)))
            if _known(dataset, values).any():
                return True
    return False


def _known(dataset: Any, values: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isfinite(values) & (values != (NODATA if dataset.nodata is None else dataset.nodata))


def _refuse_other_numbers(path: str, unsure: NDArray[np.float64]) -> None:
    """A doubt outside 0 to 1 would make one window hide another."""
    if unsure.size and not -_SLACK <= unsure.min() <= unsure.max() <= 1 + _SLACK:
        share = 1 - (unsure.min() if unsure.min() < -_SLACK else unsure.max())
        raise UserError(
            f"{path} holds a confidence of {share:g}; it must be from 0 to 1, or bytes of up to {SURE} (255 is no data)"
        )


def _box_sums(cells: NDArray[Any], tall: int, wide: int) -> NDArray[Any]:
    """Sums of all boxes of tall x wide cells."""
    sums = np.zeros((cells.shape[0] + 1, cells.shape[1] + 1), cells.dtype)
    sums[1:, 1:] = cells.cumsum(0).cumsum(1)
    return sums[tall:, wide:] - sums[:-tall, wide:] - sums[tall:, :-wide] + sums[:-tall, :-wide]


def _overlap(one: Chosen, other: Chosen) -> bool:
    return (
        one.top < other.top + other.height
        and other.top < one.top + one.height
        and one.left < other.left + other.width
        and other.left < one.left + one.width
    )


def windows_package(class_map: str, confidence: str | None, windows: Sequence[Chosen]) -> bytes:
    """The GeoPackage's bytes."""
    with contextlib.ExitStack() as stack:
        dataset = stack.enter_context(open_raster(class_map))
        sure = stack.enter_context(open_raster(confidence)) if confidence is not None else None
        grid, style = grid_of(dataset), read_style(dataset)
        labels = [
            (number, region, _shifted(grid, window))
            for number, window in enumerate(windows, 1)
            for region in _regions(dataset, sure, class_map, grid, window)
        ]
    columns = {
        "class_id": np.array([region.class_id for _, region, _ in labels], np.int32),
        "class": np.array([style.classes[region.class_id] for _, region, _ in labels], object),
        "window": np.array([number for number, _, _ in labels], np.int32),
    }
    shapes = [_polygon(part, region.polygon) for _, region, part in labels]
    # a second layer can only be added to a file on disk
    with tempfile.TemporaryDirectory(prefix="crisp-") as folder, _steady_dates():
        path = Path(folder) / "windows.gpkg"
        _write(path, LABELS, shapes, columns, grid)
        _write_windows(path, windows, grid)
        add_style_to_geopackage(path, LABELS, style.vector_qml(sorted({*style.always, *columns["class_id"].tolist()})))
        return path.read_bytes()


def _write_windows(path: Path, windows: Sequence[Chosen], grid: Grid) -> None:
    import shapely

    columns: dict[str, NDArray[Any]] = {"window": np.arange(1, len(windows) + 1, dtype=np.int32)}
    for name in ("top", "left", "height", "width"):
        columns[name] = np.array([getattr(window, name) for window in windows], np.int32)
    columns["confidence"] = np.array([np.nan if w.confidence is None else w.confidence for w in windows])
    shapes = [_polygon(_shifted(grid, w), shapely.box(0, 0, w.width, w.height)) for w in windows]
    _write(path, WINDOWS, shapes, columns, grid)


def _regions(dataset: Any, sure: Any, path: str, grid: Grid, window: Chosen) -> Iterator[Any]:
    here = Window(window.top, window.left, window.height, window.width)
    where = ((window.top, window.top + window.height), (window.left, window.left + window.width))
    classes = read_classes(dataset, path, here)
    with explaining_damage(path, here):
        sureness = None if sure is None else sure.read(1, window=where)
    if sureness is not None and sureness.dtype != np.uint8:
        sureness = None
    yield from find_regions([MapRows(0, classes, sureness)], _shifted(grid, window), 0.0)


def _shifted(grid: Grid, window: Chosen) -> Grid:
    a, b, _, d, e, _ = grid.transform
    x, y = grid.ground(window.left, window.top)
    moved = (a, b, x, d, e, y)
    return dataclasses.replace(grid, height=window.height, width=window.width, transform=moved)


def _polygon(grid: Grid, polygon: Any) -> Any:
    """From pixels to the ground."""
    import shapely

    return shapely.transform(polygon, lambda points: np.stack(grid.ground(*points.T), axis=1))


def _write(path: Path, layer: str, shapes: list[Any], columns: dict[str, NDArray[Any]], grid: Grid) -> None:
    import shapely
    from pyogrio.errors import DataLayerError, DataSourceError
    from pyogrio.raw import write

    failures = (DataLayerError, DataSourceError)
    with explaining_failure(path, *failures), warnings.catch_warnings(), heeding_failures():
        warnings.filterwarnings("ignore", "'crs' was not provided")
        write(
            path,
            geometry=shapely.to_wkb(np.array(shapes, object)),
            field_data=list(columns.values()),
            fields=list(columns),
            crs=grid.crs or None,
            geometry_type="Polygon",
            driver="GPKG",
            layer=layer,
        )


@contextlib.contextmanager
def _steady_dates() -> Iterator[None]:
    """GeoPackage notes when it was written; the same windows shall have the same bytes."""
    import pyogrio

    pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": "1970-01-01T00:00:00Z"})
    try:
        yield
    finally:
        pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": None})
