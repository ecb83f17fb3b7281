"""What `crisp view` shows together: maps, their image, and what may lie upon them, as layers with names."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.geo.reader import alpha_band, open_raster, palette
from crispseg.geo.writer import NODATA
from crispseg.raster.products import SURE
from crispseg.view.counting import Counting
from crispseg.view.features import Features
from crispseg.view.legend import Legend, MapClasses, is_class_map, read_classes
from crispseg.view.painting import OFF, empty_tile, paint_ids, paint_rgb, ramp_colours
from crispseg.view.rasters import Raster, Resampling
from crispseg.view.space import DEEPEST

_TILES_KEPT = 1024


@dataclasses.dataclass(frozen=True)
class Files:
    """What the user gave: the map first, at most one other to compare it with."""

    maps: tuple[str, ...]
    image: str | None = None
    confidence: str | None = None
    truth: str | None = None
    polygons: str | None = None


def sort_files(first: str, others: Iterable[str]) -> tuple[tuple[str, ...], str | None]:
    """The maps and the image among the files named after the map: a file that has classes is a second map."""
    maps, images = [first], list[str]()
    for path in others:
        (maps if is_class_map(path) else images).append(path)
    if len(maps) > 2:
        raise UserError(f"two maps can be compared, not {len(maps)}: {', '.join(maps)}")
    if len(images) > 1:
        raise UserError(f"one image lies under the map, not {len(images)}: {', '.join(images)}")
    return tuple(maps), images[0] if images else None


@dataclasses.dataclass(frozen=True)
class Place:
    """Somewhere to look at: a window of the map, in its pixels."""

    label: str
    top: int
    left: int
    height: int
    width: int


class ClassLayer:
    """A class map, or labels given as ids or as the map's colours, in the numbers of the legend."""

    def __init__(self, raster: Raster, legend: Legend, classes: MapClasses | None) -> None:
        self.raster, self.legend = raster, legend
        self._coloured = classes is None
        self._bands = (1, 2, 3) if self._coloured else (1,)
        self._lookup = None if classes is None else legend.lookup(classes)

    def tile(self, z: int, x: int, y: int) -> NDArray[np.uint8]:
        values, has_data = self.raster.tile(z, x, y, self._bands)
        return np.where(has_data, self.numbers(values), np.uint8(NODATA))

    def numbers(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Of (bands, h, w)."""
        return self.legend.from_colours(values[:3]) if self._lookup is None else self._lookup[values[0]]

    def name_at(self, longitude: float, latitude: float) -> str | None:
        found = self.raster.pixel(longitude, latitude)
        if found is None:
            return None
        values, has_data = found
        number = int(self.numbers(values[:, None, None])[0, 0]) if has_data else NODATA
        return self.legend.names[number] if number < len(self.legend.names) else "no data"


class ImageLayer:
    """Any image, stretched to what the eye sees where it is not made of bytes."""

    def __init__(self, raster: Raster) -> None:
        self.raster = raster
        if raster.dtype.startswith("complex"):
            raise UserError(f"{raster.path} holds complex numbers, which are no picture; give their magnitude")
        with open_raster(raster.path) as dataset:
            self._palette = palette(dataset)
            plain = [k for k in range(1, dataset.count + 1) if k != alpha_band(dataset)]
            named = {kind.name: k for k, kind in zip(dataset.indexes, dataset.colorinterp, strict=True)}
        colours = tuple(named[c] for c in ("red", "green", "blue") if c in named)
        self.bands = colours if len(colours) == 3 else tuple(plain[:3]) if len(plain) >= 3 else (plain[0],)

    @functools.cached_property
    def _range(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """The values of each band that become black and white; None: as they are."""
        if self.raster.dtype == "uint8" or self._palette is not None:
            return None
        values, has_data = self.raster.small(self.bands)
        flat = values[:, has_data].astype(float)
        flat = flat[:, np.isfinite(flat).all(0)]
        if not flat.size:
            return np.zeros(len(self.bands)), np.ones(len(self.bands))
        low, high = np.percentile(flat, (2, 98), axis=1)
        return low, np.maximum(high, low + 1e-9)

    def tile(self, z: int, x: int, y: int) -> bytes:
        # an image's shrunken copies are averages; a colour table's numbers cannot be averaged
        resampling: Resampling = "nearest" if self._palette is not None else "bilinear"
        values, has_data = self.raster.tile(z, x, y, self.bands, resampling)
        return paint_rgb(self.to_rgb(values), has_data) if has_data.any() else empty_tile()

    def to_rgb(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """(3, h, w)"""
        if self._palette is not None:
            return np.moveaxis(self._palette[values[0]][..., :3], -1, 0)
        if self._range is not None:
            low, high = (edge[:, None, None] for edge in self._range)
            values = np.clip(np.nan_to_num((values - low) / (high - low)), 0, 1) * 255
        return np.broadcast_to(values, (3, *values.shape[1:])).astype(np.uint8)


class ConfidenceLayer:
    """How sure the model is, 0 to SURE as `crisp predict` writes it, or fractions."""

    def __init__(self, raster: Raster) -> None:
        if raster.bands != 1:
            raise UserError(f"{raster.path} is no confidence map: it has {raster.bands} bands, not one")
        self.raster = raster

    def tile(self, z: int, x: int, y: int) -> NDArray[np.uint8]:
        values, has_data = self.raster.tile(z, x, y, (1,))
        return np.where(has_data, self.steps(values[0]), np.uint8(NODATA))

    def steps(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        if values.dtype == np.uint8:
            return values
        return np.clip(np.nan_to_num(values) * SURE, 0, SURE).astype(np.uint8)

    def at(self, longitude: float, latitude: float) -> float | None:
        found = self.raster.pixel(longitude, latitude)
        step = int(self.steps(found[0])[0]) if found is not None and found[1] else NODATA
        return None if step == NODATA else step / SURE


class Scene:
    """Everything about one place: layers by name, tiles, the classes' shares, single pixels."""

    def __init__(self, files: Files, title: str = "", places: tuple[Place, ...] = ()) -> None:
        self.files, self.places = files, places
        maps = [Raster(files.maps[0])]
        maps += [Raster(path, maps[0]) for path in files.maps[1:]]
        self.reference = maps[0]
        own = [read_classes(raster) for raster in maps]
        self.legend = Legend(own)
        self.title = title or " and ".join(Path(path).name for path in files.maps)
        self.classes: dict[str, ClassLayer] = {
            name: ClassLayer(raster, self.legend, c) for name, raster, c in zip("ab", maps, own, strict=False)
        }
        if files.truth is not None:
            labels = Raster(files.truth, self.reference)
            self.classes["truth"] = ClassLayer(labels, self.legend, _truth_classes(labels, own[0]))
        self.image = ImageLayer(Raster(files.image, self.reference)) if files.image else None
        self.confidence = ConfidenceLayer(Raster(files.confidence, self.reference)) if files.confidence else None
        self.features = Features(files.polygons, self.reference) if files.polygons else None
        self.counting = Counting({name: self.classes[name] for name in "ab" if name in self.classes})
        self._picture = functools.lru_cache(_TILES_KEPT)(self._paint)

    @property
    def rasters(self) -> dict[str, Raster]:
        found = {name: layer.raster for name, layer in self.classes.items()}
        found |= {} if self.image is None else {"image": self.image.raster}
        return found | ({} if self.confidence is None else {"confidence": self.confidence.raster})

    @property
    def themes(self) -> dict[str, str]:
        """What can lie upon the image, with the words for it."""
        found = {"a": "Map", "b": "Second map", "truth": "Truth"}
        names = {key: text for key, text in found.items() if key in self.classes}
        if "b" in names:
            files = [Path(path).name for path in self.files.maps]
            names |= dict(zip("ab", files if files[0] != files[1] else self.files.maps, strict=True))
            names["difference"] = "Where they differ"
        if self.confidence is not None:
            names["confidence"] = "Confidence"
        if "truth" in names:
            names["errors"] = "Errors"
        return names

    def describe(self) -> dict[str, Any]:
        """The scene as the page's script wants it."""
        raster = self.reference
        themes = self.themes
        return {
            "title": self.title,
            "pixels": raster.in_pixels,
            "size": [raster.grid.width, raster.grid.height],
            "bounds": list(raster.box),
            "zoom": raster.zoom,
            "deepest": min(DEEPEST, raster.zoom + (0 if raster.in_pixels else 1)),
            "image": self.image is not None,
            "themes": [{"id": key, "name": name} for key, name in themes.items()],
            "classes": self.legend.rows(),
            "polygons": self.features is not None,
            "places": [self._describe_place(place) for place in self.places],
            "notes": [note for each in self.rasters.values() for note in each.notes],
            "versions": {key: self.version(key) for key in ("image", *themes)},
        }

    def _describe_place(self, place: Place) -> dict[str, Any]:
        top, left, bottom, right = place.top, place.left, place.top + place.height, place.left + place.width
        ring = self.reference.to_degrees([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)])
        return {"label": place.label, "ring": ring}

    def version(self, layer: str) -> str:
        """Changes with the files of a layer, so that no browser shows an old tile."""
        used = {"errors": ("a", "truth"), "difference": ("a", "b")}.get(layer, (layer,))
        rasters = self.rasters
        return "".join(rasters[name].version for name in used if name in rasters)

    def knows(self, layer: str) -> bool:
        return layer in self.themes or (layer == "image" and self.image is not None)

    def tile(self, layer: str, z: int, x: int, y: int, off: frozenset[int]) -> bytes:
        return self._picture(layer, z, x, y, off, self.version(layer))

    def _paint(self, layer: str, z: int, x: int, y: int, off: frozenset[int], version: str) -> bytes:
        if layer == "image":
            assert self.image is not None
            return self.image.tile(z, x, y)
        if layer == "confidence":
            assert self.confidence is not None
            return paint_ids(self.confidence.tile(z, x, y), ramp_colours())
        if layer in ("errors", "difference"):
            one, other = (self.classes[name].tile(z, x, y) for name in ("a", "truth" if layer == "errors" else "b"))
            return paint_ids(compared(one, other, off), (OFF,))
        return paint_ids(self.classes[layer].tile(z, x, y), self.legend.colours, off)

    def point(self, longitude: float, latitude: float) -> dict[str, Any]:
        """What is known of the pixel under a point."""
        column, row = self.reference.place(longitude, latitude)
        grid = self.reference.grid
        if not (0 <= row < grid.height and 0 <= column < grid.width):
            return {"inside": False}
        column, row = math.floor(column), math.floor(row)
        found: dict[str, Any] = {"inside": True, "row": row, "column": column}
        if not self.reference.in_pixels:
            x, y = grid.ground(column + 0.5, row + 0.5)
            found |= {"x": x, "y": y, "crs": _crs_name(grid.crs)}
        found["classes"] = {name: layer.name_at(longitude, latitude) for name, layer in self.classes.items()}
        if self.confidence is not None:
            found["confidence"] = self.confidence.at(longitude, latitude)
        if self.image is not None and (pixel := self.image.raster.pixel(longitude, latitude)) is not None:
            found["values"] = [None if v != v else v for v in (value.item() for value in pixel[0])]
        return found


def compared(one: NDArray[np.uint8], other: NDArray[np.uint8], off: Iterable[int] = ()) -> NDArray[np.uint8]:
    """0 where two maps differ, 255 elsewhere; what either has switched off is left out."""
    differ = (one != other) & (one != NODATA) & (other != NODATA)
    hidden = np.array(sorted(off), np.uint8)
    return np.where(differ & ~np.isin(one, hidden), np.uint8(0), np.uint8(NODATA))


def _truth_classes(raster: Raster, of_map: MapClasses) -> MapClasses | None:
    """Labels that name no classes have the map's; None for labels in colours."""
    if raster.bands >= 3:
        return None
    own = read_classes(raster)
    return own if own.named else of_map


@functools.cache
def _crs_name(wkt: str) -> str:
    from rasterio.crs import CRS

    crs = CRS.from_wkt(wkt)
    code = crs.to_epsg()
    return f"EPSG:{code}" if code else wkt.split('"')[1]
