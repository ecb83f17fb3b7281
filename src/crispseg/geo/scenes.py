"""From what the user typed to scenes that can be read: files of a folder, bands of a file, the grid of the map."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crispseg.errors import UserError
from crispseg.geo import store
from crispseg.geo.bands import alpha_of_shades, band_names, choose_bands
from crispseg.geo.grid import Grid
from crispseg.geo.reader import RasterSource, open_raster, palette, raster_files
from crispseg.geo.stac.read import SourceItem, is_catalogue, read_catalogue
from crispseg.geo.store import gdal_name, is_remote
from crispseg.models.base import SegmentationModel
from crispseg.raster import values
from crispseg.raster.resample import ResampledSource
from crispseg.raster.source import Source
from crispseg.reading import list_folder

# What is taken from a folder; a file named by itself may have any name.
_RASTER_ENDINGS = {".tif", ".tiff", ".vrt", ".png", ".jpg", ".jpeg", ".jp2", ".img", ".bmp", ".webp", ".gpkg", ".nc"}
_RESOLUTION_TOLERANCE = 1.5  # how far a scene's pixels may differ in size from the model's, where the card has no range
_COARSEST = 4.0  # coarser scenes by this factor are not enlarged: there is nothing in them to see
_SLACK = 1.02  # pixels are rarely of a round size


@dataclasses.dataclass(frozen=True)
class Reading:
    """How scenes are read.

    `resolution` is metres per pixel, "model" for the one the model was trained at, "scene" for the scene's own, or
    None: the scene's own where the model has seen such, else the nearest that it has.
    """

    bands: tuple[str, ...] = ()
    resolution: float | str | None = None
    require_crs: bool = False
    drivers: tuple[str, ...] = ()  # of GDAL, allowed beside the usual ones
    any_values: bool = False  # show the model pixels unlike those it was trained on, with a warning


@dataclasses.dataclass(frozen=True)
class Scene:
    """A scene ready to be read, the grid of the map made from it, and what the user should know."""

    path: str
    source: Source
    grid: Grid
    files: tuple[str, ...]
    warnings: tuple[str, ...]
    bands: tuple[int, ...] = ()  # of the file, from 1
    told: str = ""  # which bands are read, at which scale, in one line


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """A scene by its path, what the files made from it are called, and the STAC item it came from."""

    path: str
    name: str
    item: SourceItem | None = None


def find_scenes(words: Sequence[str], asset: str = "") -> list[Found]:
    """Files named one by one, all rasters of folders, and the items of STAC files, in order, each once.

    `asset` is the one to read of STAC items.
    """
    found: dict[str, Found] = {}
    for word in words:
        for scene in _scenes_of(word, asset):
            found.setdefault(scene.path, scene)
    if asset and not any(scene.item for scene in found.values()):
        raise UserError("--asset names an asset of STAC items, but no scene is one (.json)")
    return list(found.values())


def _scenes_of(word: str, asset: str) -> list[Found]:
    if is_catalogue(word):
        return [Found(scene.path, scene.name, scene.item) for scene in read_catalogue(word, asset)]
    there = store.list_folder(word) if is_remote(word) and word.endswith("/") else None
    if there is None and Path(word).is_dir():
        there = sorted(str(path) for path in list_folder(Path(word)) if path.is_file())
    if there is None:
        return [Found(word, _stem(word))]
    inside = [name for name in there if Path(name).suffix.lower() in _RASTER_ENDINGS]
    if not inside:
        raise UserError(f"the folder {word} holds no rasters ({', '.join(sorted(_RASTER_ENDINGS))})")
    return [Found(name, _stem(name)) for name in inside]


def _stem(path: str) -> str:
    return Path(path.partition("?")[0] if is_remote(path) else path).stem


def scene_files(path: str, drivers: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Every file that is read when the scene is."""
    with open_raster(path, drivers) as dataset:
        return raster_files(dataset, path)


def open_scene(path: str, model: SegmentationModel, reading: Reading) -> Scene:
    fill = model.info.mean
    with open_raster(path, reading.drivers) as dataset:
        _refuse_unplaced(dataset, path)
        colours = palette(dataset) is not None and model.in_channels != 1
        chosen = choose_bands(path, band_names(dataset, colours), model, reading.bands)
        warnings = [*chosen.warnings, *alpha_of_shades(path, dataset)]
    source = RasterSource(path, chosen.bands, fill, colours, reading.drivers)
    grid = source.grid
    if not grid.crs and reading.require_crs:
        raise UserError(f"{path} has no coordinate reference system; assign one, or drop --require-crs")
    warnings += _check_values(path, source, model, reading)
    warnings += [] if grid.crs else [f"{path} has no coordinate reference system: the map will have none"]
    resolution, remarks = _wanted_resolution(path, grid, model, reading)
    warnings += remarks
    if resolution is None:
        map_grid = grid
    else:
        try:
            map_grid = grid.resampled(resolution)
        except UserError as error:
            raise UserError(f"{path} cannot be resampled: {error}") from error
    seen: Source = source
    if (map_grid.height, map_grid.width) != (source.height, source.width):
        seen = ResampledSource(source, map_grid.height, map_grid.width, fill)
    else:
        map_grid = grid
    told = f"{path}: {chosen.told()}; {source.dtype}, {_scale(grid, map_grid)}"
    return Scene(path, seen, map_grid, source.files, tuple(warnings), chosen.bands, told)


def _check_values(path: str, source: RasterSource, model: SegmentationModel, reading: Reading) -> list[str]:
    """Refuse pixels that are not of the kind the model was trained on."""
    dtype = np.dtype(np.uint8 if source.expand_palette else source.dtype)
    if not values.may_differ(model.info, dtype):
        return []
    pixels = [source.read(window) for window in values.some_windows(source.height, source.width)]
    sample = np.concatenate([each.values[:, each.present] for each in pixels], axis=1)
    reason = values.unfit(model.info, dtype, sample)
    if reason and not reading.any_values:
        raise values.refusal(path, reason)
    return [f"{path} does not suit the model: {reason}; the map means little"] if reason else []


def _scale(grid: Grid, map_grid: Grid) -> str:
    """At which size pixels are read."""
    if grid.area_unit == "px":
        return "pixels of unknown size"
    here, there = (math.sqrt(math.prod(g.pixel_size())) for g in (grid, map_grid))
    if map_grid is grid:
        return f"pixels of {here:.4g} m as they are"
    return f"pixels of {here:.4g} m resampled to {there:.4g} m"


def _refuse_unplaced(dataset: Any, path: str) -> None:
    """A raster that only control points, camera coefficients or arrays of coordinates place has no grid to map on."""
    if not dataset.transform.is_identity:
        return
    points, crs = dataset.gcps
    how, words = "", ""
    if points:
        how, words = f"{len(points)} ground control points", "-tps" if len(points) > 10 else "-order 1"
    elif dataset.rpcs is not None:
        how, words = "rational polynomial coefficients", "-rpc"
    elif dataset.tags(ns="GEOLOCATION"):
        how, words = "arrays of coordinates", "-geoloc"
    if how:
        system = ":".join((crs and crs.to_authority()) or ("EPSG", "4326"))
        rectified = Path(path).with_name(f"{Path(path).stem}_rectified.tif") if not is_remote(path) else "rectified.tif"
        raise UserError(
            f"{path} is placed by {how} alone, not by a grid; rectify it first: "
            f"gdalwarp {words} -r bilinear -t_srs {system} {gdal_name(path)} {rectified}"
        )


def _wanted_resolution(
    path: str, grid: Grid, model: SegmentationModel, reading: Reading
) -> tuple[float | None, list[str]]:
    """What to resample to, None for the scene as it is, and what the user should know about it."""
    if reading.resolution == "model":
        if model.info.resolution is None:
            raise UserError(
                f"the card of model {model.title!r} does not say its resolution; give --resolution in metres"
            )
        return model.info.resolution, []
    if isinstance(reading.resolution, float | int):
        return reading.resolution, []
    suits = _suitable(model)
    if suits is None or grid.area_unit == "px":
        return None, []
    here = math.sqrt(math.prod(grid.pixel_size()))
    if suits[0] <= here * _SLACK and here <= suits[1] * _SLACK:
        return None, []
    known = f"{path} has pixels of {here:.3g} m and the model was trained for {suits[0]:.3g} to {suits[1]:.3g} m"
    nearest = suits[0] if here < suits[0] else suits[1]
    if reading.resolution == "scene" or here > _COARSEST * suits[1]:
        return None, [f"{known}: expect a poor map"]
    return nearest, [f"{known}: it is resampled to {nearest:.3g} m (--resolution scene leaves it as it is)"]


def _suitable(model: SegmentationModel) -> tuple[float, float] | None:
    """The finest and the coarsest pixels that the model's card vouches for, in metres."""
    info = model.info
    if info.resolutions is not None or info.resolution is None:
        return info.resolutions
    return info.resolution / _RESOLUTION_TOLERANCE, info.resolution * _RESOLUTION_TOLERANCE
