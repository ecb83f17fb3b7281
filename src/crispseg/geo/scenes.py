"""From what the user typed to scenes that can be read: files of a folder, bands of a file, the grid of the map."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crispseg.errors import UserError
from crispseg.geo import store
from crispseg.geo.bands import alpha_of_shades, band_names, choose_bands
from crispseg.geo.grid import Grid
from crispseg.geo.reader import RasterSource, open_raster, palette, raster_files
from crispseg.geo.scale import at_scale, check_scale, expected, state_size, tell_scale
from crispseg.geo.stac.read import SourceItem, is_catalogue, read_catalogue
from crispseg.geo.store import gdal_name, is_remote
from crispseg.models.base import SegmentationModel
from crispseg.raster import values
from crispseg.raster.source import Pixels, Source
from crispseg.reading import list_folder

# What is taken from a folder; a file named by itself may have any name.
_RASTER_ENDINGS = {".tif", ".tiff", ".vrt", ".png", ".jpg", ".jpeg", ".jp2", ".img", ".bmp", ".webp", ".gpkg", ".nc"}


@dataclasses.dataclass(frozen=True)
class Reading:
    """How scenes are read.

    `resolution` is what to resample to (see `geo.scale.at_scale`), `pixel_size` how many metres the pixels of scenes
    measure that have no reference system to tell it, `nodata` a number that stands for no data beside what scenes say.
    """

    bands: tuple[str, ...] = ()
    resolution: float | str | None = None
    require_crs: bool = False
    drivers: tuple[str, ...] = ()  # of GDAL, allowed beside the usual ones
    any_values: bool = False  # show the model pixels unlike those it was trained on, with a warning
    pixel_size: float | None = None
    nodata: float | None = None

    def __post_init__(self) -> None:
        check_scale(self.resolution, self.pixel_size)
        values.check_nodata(self.nodata)


@dataclasses.dataclass(frozen=True)
class Scene:
    """A scene ready to be read, the grid of the map made from it, and what the user should know."""

    path: str
    source: Source
    grid: Grid
    files: tuple[str, ...]
    about_image: tuple[str, ...] = ()
    about_place: tuple[str, ...] = ()
    bands: tuple[int, ...] = ()  # of the file, from 1
    told: str = ""  # which bands are read, at which scale, in one line

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.about_image + self.about_place


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
        # a link to nowhere, as to a disk that is not there, is told of when its turn comes
        there = [str(path) for path in list_folder(Path(word)) if not (path.is_dir() or path.name.startswith("."))]
    if there is None:
        return [Found(word, _stem(word))]
    inside = [name for name in there if Path(name).suffix.lower() in _RASTER_ENDINGS and not _holds_no_tiles(name)]
    if not inside:
        raise UserError(f"the folder {word} holds no rasters ({', '.join(sorted(_RASTER_ENDINGS))})")
    return [Found(name, _stem(name)) for name in inside]


def _holds_no_tiles(path: str) -> bool:
    """Whether it is a GeoPackage of shapes, as labels and polygons beside scenes are."""
    if Path(path).suffix.lower() != ".gpkg" or is_remote(path):
        return False
    try:
        with contextlib.closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as database:
            kinds = {kind for (kind,) in database.execute("SELECT data_type FROM gpkg_contents")}
    except sqlite3.Error:  # whoever opens it as a raster says what is wrong
        return False
    return kinds.isdisjoint(("tiles", "2d-gridded-coverage"))


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
        warnings = _about_own_map(dataset, path, reading)
        colours = palette(dataset) is not None and model.in_channels != 1
        chosen = choose_bands(path, band_names(dataset, colours), model, reading.bands)
        warnings += [*chosen.warnings, *alpha_of_shades(path, dataset)]
    source = RasterSource(path, chosen.bands, fill, colours, reading.drivers, reading.nodata)
    grid = source.grid
    if not grid.crs and reading.require_crs:
        what = "give it one (gdal_edit.py -a_ullr, or its .tfw)" if grid.unplaced else "assign one"
        raise UserError(f"{path} {grid.lack}; {what}, or drop --require-crs")
    looked_at = [source.read(window) for window in values.some_windows(source.height, source.width)]
    filler = values.tell_filler(path, _as_in_the_file(source, looked_at, reading))
    warnings += _check_values(path, source, looked_at, filler, model, reading)
    grid, remarks = state_size(path, grid, reading.pixel_size)
    seen = at_scale(path, source, grid, model, reading.resolution)
    told = f"{path}: {chosen.told()}; {source.dtype}, {tell_scale(grid, seen.grid)}"
    about_image = (*warnings, *remarks, *seen.remarks, *filler)
    about_place = _about_place(path, grid, model, reading)
    return Scene(path, seen.source, seen.grid, source.files, about_image, about_place, chosen.bands, told)


def _as_in_the_file(source: RasterSource, looked_at: Sequence[Pixels], reading: Reading) -> Sequence[Pixels]:
    """Of a palette image, the indices instead of the colours, as `--nodata` has them."""
    if not source.expand_palette:
        return looked_at
    with contextlib.closing(RasterSource(source.path, (1,), (0.0,), drivers=reading.drivers)) as file:
        windows = values.some_windows(source.height, source.width)
        return [Pixels(file.read(window).values, seen.present) for window, seen in zip(windows, looked_at, strict=True)]


def _about_place(path: str, grid: Grid, model: SegmentationModel, reading: Reading) -> tuple[str, ...]:
    """What the user should know of a scene that does not say where it lies or how large its pixels are."""
    lines = [] if grid.crs else [f"{path} {grid.lack}: the map will have none"]
    suits = expected(model.info)
    if grid.area_unit == "px" and suits is not None and reading.resolution is None:
        lines.append(
            f"{path} does not say how large its pixels are, and the model was trained for {suits[0]:.3g} to "
            f"{suits[1]:.3g} m: they are taken as they are (--pixel-size M says what they measure)"
        )
    return tuple(lines)


def _check_values(
    path: str,
    source: RasterSource,
    looked_at: Sequence[Pixels],
    filler: Sequence[str],
    model: SegmentationModel,
    reading: Reading,
) -> list[str]:
    """Refuse pixels that are not of the kind the model was trained on."""
    dtype = np.dtype(np.uint8 if source.expand_palette else source.dtype)
    if not values.may_differ(model.info, dtype):
        return []
    sample = np.concatenate([each.values[:, each.present] for each in looked_at], axis=1)
    reason = values.unfit(model.info, dtype, sample)
    if reason and not reading.any_values:
        raise values.refusal(path, "; ".join([reason, *filler]))
    return [f"{path} does not suit the model: {reason}; the map means little"] if reason else []


def _about_own_map(dataset: Any, path: str, reading: Reading) -> list[str]:
    """A map opens like an image, and a folder of scenes may hold those of an earlier run."""
    tags = dataset.tags()
    if "MODEL" not in tags or not tags.get("TIFFTAG_SOFTWARE", "").startswith("crispseg "):
        return []
    what = f"{path} is a map that crispseg has made with {tags['MODEL']}, not an image"
    if not reading.any_values:
        raise UserError(f"{what}: a map of it would mean nothing; leave it out (--any-values takes it all the same)")
    return [f"{what}; the map means little"]


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
            f"gdalwarp {words} -r bilinear -t_srs {system} {shlex.join([gdal_name(path), str(rectified)])}"
        )
