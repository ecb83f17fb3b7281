"""Where pixels lie in the browser's world, which is Web Mercator.

A scene without a reference system is laid out in pixels: its upper left corner at longitude and latitude 0, one pixel
as large as a pixel of the tiles at `ZOOM`. Mercator is flat, so nothing is bent, and a tile at `ZOOM` is a block of
the file.
"""

from __future__ import annotations

import math
from typing import NamedTuple

TILE = 512  # px; a block of our own maps, and fewer requests than smaller ones
_HALF = 20037508.342789244  # half the world's circumference in Mercator metres
ZOOM = 17
PIXEL = 2 * _HALF / TILE / 2**ZOOM  # Mercator metres of a pixel of a scene without a reference system
HIGHEST = 85.06  # degrees of latitude; Mercator ends there
DEEPEST = 24  # zoom levels that browsers' maps know


class Box(NamedTuple):
    west: float
    south: float
    east: float
    north: float

    def overlaps(self, other: Box) -> bool:
        return (
            self.west < other.east and other.west < self.east and self.south < other.north and other.south < self.north
        )


def tile_box(z: int, x: int, y: int) -> Box:
    """A tile's ground in Mercator metres."""
    side = 2 * _HALF / 2**z
    return Box(x * side - _HALF, _HALF - (y + 1) * side, (x + 1) * side - _HALF, _HALF - y * side)


def to_degrees(x: float, y: float) -> tuple[float, float]:
    """Longitude and latitude of a point in Mercator metres."""
    return x / _HALF * 180, math.degrees(2 * math.atan(math.exp(y / _HALF * math.pi)) - math.pi / 2)


def to_metres(longitude: float, latitude: float) -> tuple[float, float]:
    latitude = max(-HIGHEST, min(HIGHEST, latitude))
    y = math.log(math.tan(math.pi / 4 + math.radians(latitude) / 2)) / math.pi * _HALF
    return longitude / 180 * _HALF, y


def zoom_for(size: float) -> int:
    """The zoom level whose pixels are no larger than `size` Mercator metres."""
    return max(0, min(DEEPEST, math.ceil(math.log2(2 * _HALF / TILE / size) - 1e-6)))
