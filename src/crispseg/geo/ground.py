"""What georeferenced images say of themselves: the size of their pixels on the ground, and their bands' names."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from crispseg.geo.bands import band_names
from crispseg.geo.reader import RasterSource, open_raster, palette

_NAMELESS = {"gray", "grey", "undefined", "palette", "alpha"}


class Ground(NamedTuple):
    """Of a set of images; None and empty where they do not tell or do not agree."""

    sizes: tuple[float, float] | None = None  # of the smallest and the largest pixels, in metres
    middle: float | None = None
    bands: tuple[str, ...] = ()


def read_ground(paths: Sequence[str]) -> Ground:
    """Of rasters that GDAL reads; those without a reference system tell no size."""
    sizes: list[float] = []
    names: set[tuple[str, ...]] = set()
    for path in paths:
        with open_raster(path) as dataset:
            colours = palette(dataset) is not None
            told = tuple(band_names(dataset, colours))
            count = 3 if colours else dataset.count
        names.add(told)
        grid = RasterSource(path, tuple(range(1, count + 1)), (0.0,) * count, colours).grid
        if grid.area_unit == "m2":
            sizes.append(math.sqrt(math.prod(grid.pixel_size())))
    agreed = next(iter(names)) if len(names) == 1 else ()
    useful = agreed if len(set(agreed)) == len(agreed) and not set(agreed) & _NAMELESS else ()
    if not sizes:
        return Ground(bands=useful)
    return Ground((min(sizes), max(sizes)), round(statistics.median(sizes), 6), useful)
