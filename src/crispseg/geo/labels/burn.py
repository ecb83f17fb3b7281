"""Polygons to class ids, window by window; what lies in two classes is ordered, or found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.data.classes import IGNORE
from crispseg.errors import UserError
from crispseg.geo.labels.layers import Shapes
from crispseg.raster.source import Window

ORDERS = ("error", "first", "last", "smallest")  # or the name of a field


@dataclasses.dataclass
class Overlap:
    """Pixels that lie in polygons of two classes."""

    pixels: int = 0
    place: tuple[int, int] = (0, 0)  # row and column of the first
    ids: tuple[int, int] = (0, 0)  # the lowest and highest class there


class Burner:
    """The shapes of one image. `ids` gives the class of each value; shapes without a value are ignored ground.

    A pixel has the class of the polygon its middle lies in. Where several do, `order` says which: the first or the
    last of the layer, the smallest, or (any other word) the one with the largest rank. With "error", pixels of two
    classes are counted in `overlap` and the caller refuses them.
    """

    def __init__(self, shapes: Shapes, ids: Mapping[Any, int], order: str, background: int = IGNORE):
        import shapely

        self.order, self.background, self.overlap = order, background, Overlap()
        classes = np.array([IGNORE if value is None else ids[value] for value in shapes.values], np.uint8)
        if order == "error":
            rank = classes.astype(float)
        elif order == "smallest":
            rank = -shapely.area(shapes.polygons)
        else:
            rank = -shapes.ranks if order == "first" else shapes.ranks
        rank[classes == IGNORE] = np.inf  # ground that is not to be learnt lies on top
        self._order = np.argsort(rank, kind="stable")
        self._classes, self._polygons = classes[self._order], shapes.polygons[self._order]
        self._tree = shapely.STRtree(self._polygons)

    def burn(self, window: Window) -> NDArray[np.uint8]:
        """(height, width) class ids, the background's where no polygon is."""
        here = self._inside(window)
        result = _rasterised(self._polygons[here], self._classes[here], window, self.background)
        if self.order == "error":
            self._look_for_overlap(here, window)
        return result

    def _look_for_overlap(self, here: NDArray[np.int64], window: Window) -> None:
        """Burnt in the order of their ids and against it, polygons agree wherever there is but one class."""
        here = here[self._classes[here] != IGNORE]
        highest = _rasterised(self._polygons[here], self._classes[here], window, IGNORE)
        lowest = _rasterised(self._polygons[here[::-1]], self._classes[here[::-1]], window, IGNORE)
        both = highest != lowest
        if both.any():
            row, col = np.argwhere(both)[0]
            if not self.overlap.pixels:
                self.overlap.place = (window.top + int(row), window.left + int(col))
                self.overlap.ids = (int(lowest[row, col]), int(highest[row, col]))
            self.overlap.pixels += int(both.sum())

    def _inside(self, window: Window) -> NDArray[np.int64]:
        import shapely

        frame = shapely.box(window.left, window.top, window.left + window.width, window.top + window.height)
        found: NDArray[np.int64] = np.sort(self._tree.query(frame))
        return found


def area_of_interest(shapes: Shapes, window: Window) -> NDArray[np.bool_]:
    """Whether each pixel's middle lies in one of the shapes."""
    import shapely

    frame = shapely.box(window.left, window.top, window.left + window.width, window.top + window.height)
    inside = shapes.polygons[shapely.intersects(shapes.polygons, frame)]
    return _rasterised(inside, np.ones(len(inside), np.uint8), window, 0) == 1


def refuse_overlap(overlap: Overlap, names: tuple[str, ...], image: str, labels: str) -> None:
    if overlap.pixels:
        low, high = (names[k] for k in overlap.ids)
        row, col = overlap.place
        raise UserError(
            f"{labels}: polygons of different classes overlap on {overlap.pixels} pixels of {image}, first {low!r} and "
            f"{high!r} at row {row}, column {col}; mend them, or say which lies on top: --overlaps last (drawn later), "
            "first, smallest, or the name of a field with numbers"
        )


def _rasterised(polygons: NDArray[Any], classes: NDArray[np.uint8], window: Window, fill: int) -> NDArray[np.uint8]:
    from rasterio import Affine
    from rasterio.features import rasterize

    shape = (window.height, window.width)
    if not len(polygons):
        return np.full(shape, fill, np.uint8)
    pairs = zip(polygons, classes.tolist(), strict=True)
    burnt: NDArray[np.uint8] = rasterize(
        pairs, shape, fill, transform=Affine.translation(window.left, window.top), dtype="uint8"
    )
    return burnt
