"""The classes of the maps that are shown: one list of names and colours for all of them, matched by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.geo.reader import open_raster, palette
from crispseg.geo.writer import NODATA, spare_hues
from crispseg.reading import parse_json
from crispseg.view.rasters import Raster

Colour = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class MapClasses:
    """What a class map says of itself: name and colour of its ids. A map that names none has those that occur."""

    names: dict[int, str]
    colours: dict[int, Colour]
    named: bool  # by the map itself


def read_classes(raster: Raster) -> MapClasses:
    if raster.bands != 1 or raster.dtype != "uint8":
        raise UserError(
            f"{raster.path} is no class map: it has {raster.bands} bands of {raster.dtype}; a map has one of uint8. "
            "Give the map first, then the image"
        )
    with open_raster(raster.path) as dataset:
        names = _names(dataset.tags())
        table = palette(dataset)
        nodata = dataset.nodata
    named = bool(names)
    if not named:
        values, has_data = raster.small((1,), 2048)
        found = np.unique(values[0][has_data])
        names = {int(k): f"class {k}" for k in found if k != NODATA and k != nodata}
    spare = spare_hues(max(names, default=0) + 1)
    colours = {}
    for k in names:
        red, green, blue, opaque = (int(v) for v in table[k]) if table is not None else (0, 0, 0, 0)
        colours[k] = (red, green, blue) if opaque else spare[k]
    return MapClasses(names, colours, named)


def _names(tags: dict[str, str]) -> dict[int, str]:
    try:
        return {int(k): str(v) for k, v in parse_json(tags["CLASSES"], "CLASSES").items() if 0 <= int(k) < NODATA}
    except (KeyError, ValueError, AttributeError, UserError):
        return {}


def is_class_map(path: str) -> bool:
    """Whether a file says of itself that it is one: it names classes, or has one band with a colour table."""
    with open_raster(path) as dataset:
        one = dataset.count == 1 and dataset.dtypes[0] == "uint8"
        return one and (bool(_names(dataset.tags())) or palette(dataset) is not None)


class Legend:
    """All classes of all maps, numbered in the order of the first map; 255 is no data."""

    def __init__(self, maps: list[MapClasses]) -> None:
        self.names: list[str] = []
        self.colours: list[Colour] = []
        for classes in maps:
            for k, name in sorted(classes.names.items()):
                if name not in self.names:
                    self.names.append(name)
                    self.colours.append(classes.colours[k])
        if len(self.names) > NODATA:
            raise UserError(f"the maps have {len(self.names)} classes together; {NODATA} can be shown")

    def lookup(self, classes: MapClasses) -> NDArray[np.uint8]:
        """(256,) number in this legend of every value of a map."""
        table = np.full(256, NODATA, np.uint8)
        for k, name in classes.names.items():
            table[k] = self.names.index(name)
        return table

    def from_colours(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Numbers (h, w) of the classes whose colours (3, h, w) are; other colours are no data."""
        ids = np.full(values.shape[1:], NODATA, np.uint8)
        for number, colour in enumerate(self.colours):
            ids[(values == np.array(colour, values.dtype)[:, None, None]).all(0)] = number
        return ids

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"id": i, "name": name, "colour": "#{:02x}{:02x}{:02x}".format(*colour)}
            for i, (name, colour) in enumerate(zip(self.names, self.colours, strict=True))
        ]
