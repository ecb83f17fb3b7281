"""Windows that somebody marked on the map, as a GeoPackage with the prediction inside them to start labels from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from crispseg.errors import UserError
from crispseg.geo.suggest import Chosen, windows_package

if TYPE_CHECKING:
    from crispseg.view.scene import Scene

MOST_WINDOWS = 200
_LARGEST_SIDE = 8192  # px


class Marked(NamedTuple):
    west: float
    south: float
    east: float
    north: float

    @classmethod
    def read(cls, text: str) -> Marked:
        """As in 7.1,50.2,7.3,50.4"""
        try:
            west, south, east, north = (float(word) for word in text.split(","))
        except ValueError:
            raise UserError(f"{text[:80]!r} is no window; four numbers are") from None
        return cls(west, south, east, north)


def windows_file(scene: Scene, marked: list[Marked]) -> bytes:
    """The file's bytes; nothing is written to disk."""
    chosen = [_in_pixels(scene, window) for window in marked]
    confidence = scene.files.confidence
    return windows_package(scene.files.maps[0], confidence, chosen)


def _in_pixels(scene: Scene, window: Marked) -> Chosen:
    grid = scene.reference.grid
    corners = [(window.west, window.north), (window.east, window.north), (window.east, window.south)]
    corners.append((window.west, window.south))
    columns, rows = zip(*(scene.reference.place(*corner) for corner in corners), strict=True)
    if not all(value == value for value in (*columns, *rows)):
        raise UserError("a marked window lies outside the world")
    left, right = (max(0, min(grid.width, round(v))) for v in (min(columns), max(columns)))
    top, bottom = (max(0, min(grid.height, round(v))) for v in (min(rows), max(rows)))
    if right <= left or bottom <= top:
        raise UserError("a marked window lies beside the map; mark it upon the map")
    if max(right - left, bottom - top) > _LARGEST_SIDE:
        raise UserError(
            f"a window of {right - left} x {bottom - top} px is too large; {_LARGEST_SIDE} px a side at most"
        )
    return Chosen(top, left, bottom - top, right - left, None)
