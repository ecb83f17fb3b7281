"""Orthophotos as sources of training images: which bands, of what type, cut into which windows."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from crispseg.errors import UserError
from crispseg.geo.bands import band_names, band_number
from crispseg.geo.grid import Grid
from crispseg.geo.reader import RasterSource, open_raster, palette
from crispseg.raster.source import Window

_KEPT_TYPES = ("uint8", "int8", "uint16", "int16", "float32")  # others are written as float32
_SIMILAR = 1.5  # how far pixel sizes of one data set may differ without a remark


@dataclasses.dataclass(frozen=True)
class Ortho:
    """An image to be labelled."""

    path: str
    name: str
    source: RasterSource
    band_names: tuple[str, ...]
    nodata: int | None = None  # what its file calls no data, where that is a whole number of its type

    @property
    def grid(self) -> Grid:
        return self.source.grid

    @property
    def dtype(self) -> str:
        return self.source.dtype if self.source.dtype in _KEPT_TYPES else "float32"

    def resolution(self) -> float | None:
        """Metres per pixel, where the reference system tells."""
        return math.sqrt(math.prod(self.grid.pixel_size())) if self.grid.area_unit == "m2" else None


def open_orthos(paths: Sequence[str], bands: Sequence[str] = ()) -> list[Ortho]:
    """All images, with the same bands; names are those of the files, without their endings."""
    orthos = [_open(path, bands) for path in dict.fromkeys(paths)]
    names = [ortho.name for ortho in orthos]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"two images are both called {twice}; rename one of them")
    first = orthos[0]
    for ortho in orthos[1:]:
        if (len(ortho.band_names), ortho.dtype) != (len(first.band_names), first.dtype):
            raise UserError(
                f"{ortho.path} has {len(ortho.band_names)} bands of {ortho.dtype} and {first.path} "
                f"{len(first.band_names)} of {first.dtype}; images of one data set must agree: choose with --bands"
            )
    return orthos


def _open(path: str, wanted: Sequence[str]) -> Ortho:
    with open_raster(path) as dataset:
        colours = palette(dataset) is not None
        names, fillers = band_names(dataset, colours), dataset.nodatavals
    plain = [k for k, name in enumerate(names, 1) if name != "alpha"]
    bands = tuple(band_number(path, names, word) for word in wanted) or tuple(plain)
    source = RasterSource(path, bands, (0.0,) * len(bands), expand_palette=colours)
    nodata = None if colours else _whole_filler({fillers[band - 1] for band in bands}, source.dtype)
    told = tuple(names[band - 1] for band in bands)
    useful = len(set(told)) == len(told) and not set(told) & {"gray", "grey", "undefined", "palette"}
    ortho = Ortho(path, Path(path).stem, source, told if useful else tuple(f"band {band}" for band in bands), nodata)
    gap = math.nan if ortho.dtype == "float32" else nodata or 0
    source.fill = (gap,) * len(bands)  # so that gaps are stored as gaps, those of single bands too
    return ortho


def _whole_filler(fillers: set[float | None], dtype: str) -> int | None:
    """The number that stands for no data in all bands, if whole numbers of this type can be it."""
    number = next(iter(fillers)) if len(fillers) == 1 else None
    if number is None or not number.is_integer() or dtype not in _KEPT_TYPES or dtype == "float32":
        return None
    limits = np.iinfo(dtype)
    return int(number) if limits.min <= number <= limits.max else None


def common_resolution(orthos: Sequence[Ortho]) -> tuple[float | None, list[str]]:
    """The data set's metres per pixel, and a remark where its images differ."""
    sizes = {ortho.path: size for ortho in orthos if (size := ortho.resolution()) is not None}
    if not sizes:
        return None, ["the images have no reference system in metres: the scale of the data is unknown"]
    smallest, largest = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    remarks = []
    if sizes[largest] > _SIMILAR * sizes[smallest]:
        remarks.append(
            f"pixels are {sizes[smallest]:.3g} m in {smallest} and {sizes[largest]:.3g} m in {largest}: a model learns "
            "one scale best"
        )
    return round(statistics.median(sizes.values()), 6), remarks


def windows(height: int, width: int, chip: int) -> Iterator[Window]:
    """Chips of at most `chip` pixels and nearly equal size, from top to bottom; the whole image for 0."""
    rows, cols = (_cuts(length, chip or length) for length in (height, width))
    for top, bottom in rows:
        for left, right in cols:
            yield Window(top, left, bottom - top, right - left)


def _cuts(length: int, step: int) -> list[tuple[int, int]]:
    parts = -(-length // step)
    edges = [length * k // parts for k in range(parts + 1)]
    return list(itertools.pairwise(edges))
