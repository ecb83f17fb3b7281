"""From what the user typed to scenes that can be read: files of a folder, bands of a file, the grid of the map."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crispseg.errors import UserError, nearest
from crispseg.geo.grid import Grid
from crispseg.geo.reader import RasterSource, alpha_band, descriptions, open_raster, palette, raster_files
from crispseg.models.base import SegmentationModel
from crispseg.predict.resample import ResampledSource
from crispseg.predict.source import Source
from crispseg.reading import list_folder

# What is taken from a folder; a file named by itself may have any name.
_RASTER_ENDINGS = {".tif", ".tiff", ".vrt", ".png", ".jpg", ".jpeg", ".jp2", ".img", ".bmp", ".webp", ".gpkg", ".nc"}
_RESOLUTION_TOLERANCE = 1.5  # how far a scene's pixels may differ in size from the model's without a warning


@dataclasses.dataclass(frozen=True)
class Reading:
    """How scenes are read. `resolution` is metres per pixel, or "model" for the one the model was trained at."""

    bands: tuple[str, ...] = ()
    resolution: float | str | None = None
    require_crs: bool = False
    drivers: tuple[str, ...] = ()  # of GDAL, allowed beside the usual ones


@dataclasses.dataclass(frozen=True)
class Scene:
    """A scene ready to be read, the grid of the map made from it, and what the user should know."""

    path: str
    source: Source
    grid: Grid
    files: tuple[str, ...]
    warnings: tuple[str, ...]
    bands: tuple[int, ...] = ()  # of the file, from 1


def find_scenes(words: Sequence[str]) -> list[str]:
    """Files named one by one and all rasters of folders, in order, each once."""
    found: dict[str, None] = {}
    for word in words:
        path = Path(word)
        if not path.is_dir():
            found[word] = None
            continue
        inside = sorted(str(p) for p in list_folder(path) if p.suffix.lower() in _RASTER_ENDINGS and p.is_file())
        if not inside:
            raise UserError(f"the folder {path} holds no rasters ({', '.join(sorted(_RASTER_ENDINGS))})")
        found.update(dict.fromkeys(inside))
    return list(found)


def scene_files(path: str, drivers: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Every file that is read when the scene is."""
    with open_raster(path, drivers) as dataset:
        return raster_files(dataset, path)


def open_scene(path: str, model: SegmentationModel, reading: Reading) -> Scene:
    fill = model.info.mean
    with open_raster(path, reading.drivers) as dataset:
        colours = palette(dataset) is not None and model.in_channels != 1
        bands = choose_bands(path, band_names(dataset, colours), model, reading.bands)
    source = RasterSource(path, bands, fill, colours, reading.drivers)
    grid = source.grid
    if not grid.crs and reading.require_crs:
        raise UserError(f"{path} has no coordinate reference system; assign one, or drop --require-crs")
    warnings = [] if grid.crs else [f"{path} has no coordinate reference system: the map will have none"]
    resolution = _wanted_resolution(model, reading)
    if resolution is None:
        warnings += _resolution_warnings(path, grid, model)
        return Scene(path, source, grid, source.files, tuple(warnings), bands)
    try:
        grid = grid.resampled(resolution)
    except UserError as error:
        raise UserError(f"{path} cannot be resampled: {error}") from error
    if (grid.height, grid.width) == (source.height, source.width):
        return Scene(path, source, source.grid, source.files, tuple(warnings), bands)
    resampled = ResampledSource(source, grid.height, grid.width, fill)
    return Scene(path, resampled, grid, source.files, tuple(warnings), bands)


def band_names(dataset: Any, colours: bool) -> list[str]:
    """What each band is called: its description, else its colour; alpha is not a band to choose by default."""
    if colours:
        return ["red", "green", "blue"]
    alpha = alpha_band(dataset)
    names = [
        (description or colour.name).lower()
        for description, colour in zip(descriptions(dataset), dataset.colorinterp, strict=True)
    ]
    if alpha:
        names[alpha - 1] = "alpha"
    return names


def choose_bands(path: str, names: list[str], model: SegmentationModel, wanted: Sequence[str] = ()) -> tuple[int, ...]:
    """The bands to show the model, from 1: those asked for, else those named as the model's, else all (but alpha)."""
    if wanted:
        bands = tuple(band_number(path, names, word) for word in wanted)
    else:
        expected = [name.lower() for name in model.info.bands]
        by_name = len(expected) == model.in_channels and all(names.count(name) == 1 for name in expected)
        plain = [k for k, name in enumerate(names, 1) if name != "alpha"]
        bands = tuple(names.index(name) + 1 for name in expected) if by_name and expected else tuple(plain)
    if len(bands) != model.in_channels:
        takes = f"{model.in_channels} bands" + (f" ({', '.join(model.info.bands)})" if model.info.bands else "")
        example = ",".join(str(k) for k in range(1, model.in_channels + 1))
        given = f"--bands names {len(bands)}" if wanted else f"{path} has {len(bands)}"
        given += " and alpha" if not wanted and "alpha" in names else ""
        raise UserError(f"model {model.name!r} takes {takes} and {given}; choose with --bands, e.g. --bands {example}")
    return bands


def band_number(path: str, names: list[str], word: str) -> int:
    if word.isdecimal():
        if not 1 <= int(word) <= len(names):
            raise UserError(f"{path} has bands 1 to {len(names)}, not {word}")
        return int(word)
    if names.count(word.lower()) != 1:
        known = [name for name in names if names.count(name) == 1]
        raise UserError(f"{path} has no single band called {word!r}{nearest(word, known)}")
    return names.index(word.lower()) + 1


def _wanted_resolution(model: SegmentationModel, reading: Reading) -> float | None:
    if reading.resolution != "model":
        assert not isinstance(reading.resolution, str)
        return reading.resolution
    if model.info.resolution is None:
        raise UserError(f"the card of model {model.name!r} does not say its resolution; give --resolution in metres")
    return model.info.resolution


def _resolution_warnings(path: str, grid: Grid, model: SegmentationModel) -> list[str]:
    trained = model.info.resolution
    if trained is None or grid.area_unit == "px":
        return []
    here = math.sqrt(math.prod(grid.pixel_size()))
    if 1 / _RESOLUTION_TOLERANCE < here / trained < _RESOLUTION_TOLERANCE:
        return []
    return [
        f"{path} has {here:.3g} m pixels and the model was trained at {trained:.3g} m: "
        "expect a poor map, or pass --resolution model"
    ]
