"""Regions of one class as polygons, from rows of a class map that arrive from top to bottom.

Each band of rows is cut into its connected regions (by sides, not corners). Pieces that meet across the line between
two bands are joined. A region is given away as soon as no further row can touch it, so memory holds the regions that
reach the present row, never the map. Coordinates are in pixels: x along columns, y along rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crispseg.geo.grid import Grid
from crispseg.geo.simplify import simplify_pieces

NODATA = 255
_PIXELS_AT_ONCE = 2**23


class MapRows(NamedTuple):
    """Some full rows of a class map, with the confidence of each pixel where that is known."""

    top: int
    classes: NDArray[np.uint8]  # (rows, width)
    confidence: NDArray[np.uint8] | None = None


def in_parts(rows: MapRows) -> Iterator[MapRows]:
    """Cut into parts small enough to be labelled in little memory."""
    height, width = rows.classes.shape
    step = max(1, _PIXELS_AT_ONCE // width)
    for top in range(0, height, step):
        some = slice(top, top + step)
        yield MapRows(rows.top + top, rows.classes[some], None if rows.confidence is None else rows.confidence[some])


@dataclasses.dataclass(eq=False)
class Region:
    """Connected pixels of one class, perhaps still growing."""

    class_id: int
    pieces: list[Any]  # shapely polygons
    pixels: int
    area: float
    confidence: float  # summed over the pixels
    joined_to: Region | None = None

    def root(self) -> Region:
        region = self
        while region.joined_to is not None:
            region = region.joined_to
        return region

    def join(self, other: Region) -> None:
        """Take over all of `other`."""
        self.pieces += other.pieces
        self.pixels += other.pixels
        self.area += other.area
        self.confidence += other.confidence
        other.joined_to, other.pieces = self, []

    def finish(self) -> Finished:
        import shapely

        polygon = self.pieces[0] if len(self.pieces) == 1 else shapely.union_all(self.pieces)
        return Finished(self.class_id, polygon, self.pixels, self.area, self.confidence / self.pixels)


class Finished(NamedTuple):
    """A whole region: its polygon in pixel coordinates, its size, its mean confidence (0 to 254)."""

    class_id: int
    polygon: Any
    pixels: int
    area: float
    confidence: float


def find_regions(bands: Iterable[MapRows], grid: Grid, tolerance: float = 0.0) -> Iterator[Finished]:
    """All regions with data. `tolerance` (pixels) simplifies outlines so that neighbours still share their edges."""
    above: NDArray[np.uint8] | None = None  # the last row of the band above
    growing: dict[int, Region] = {}  # label in that row -> region
    above_labels: NDArray[np.int32] | None = None
    for rows, below in _with_next_row(bands):
        labels, class_of = label_regions(rows.classes)
        regions = _pieces(rows, labels, class_of, grid, tolerance, above, below)
        if above is not None and above_labels is not None:
            for up, down in seam_pairs(above, above_labels, rows.classes[0], labels[0]):
                one, other = growing[up].root(), regions[down].root()
                if one is not other:
                    one.join(other)
        reaching = {label: regions[label].root() for label in np.unique(labels[-1]).tolist() if label in regions}
        open_now = _distinct([*growing.values(), *regions.values()])
        still_growing = _distinct(reaching.values())
        yield from (region.finish() for key, region in open_now.items() if key not in still_growing)
        growing, above, above_labels = reaching, rows.classes[-1], labels[-1]
    yield from (region.finish() for region in _distinct(growing.values()).values())


def _distinct(regions: Iterable[Region]) -> dict[int, Region]:
    """The regions that were not joined to others, once each, in order."""
    return {id(region): region for region in regions if region.joined_to is None}


def label_regions(classes: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """A number from 1 for every connected region (regions without data too), and the class of each number."""
    from scipy import ndimage

    labels = np.zeros(classes.shape, np.int32)
    class_of = [np.zeros(1, np.uint8)]
    count = 0
    for class_id in np.flatnonzero(np.bincount(classes.ravel(), minlength=256)):
        here = classes == class_id
        part, found = ndimage.label(here)
        labels[here] = part[here] + count
        count += found
        class_of.append(np.full(found, class_id, np.uint8))
    return labels, np.concatenate(class_of)


def seam_pairs(
    above: NDArray[np.uint8], above_labels: NDArray[np.int32], below: NDArray[np.uint8], below_labels: NDArray[np.int32]
) -> list[tuple[int, int]]:
    """Labels of two neighbouring rows that belong to one region with data."""
    same = (above == below) & (above != NODATA)
    pairs = np.unique(np.stack([above_labels[same], below_labels[same]], axis=1), axis=0)
    return [(int(up), int(down)) for up, down in pairs]


def _pieces(
    rows: MapRows,
    labels: NDArray[np.int32],
    class_of: NDArray[np.uint8],
    grid: Grid,
    tolerance: float,
    above: NDArray[np.uint8] | None,
    below: NDArray[np.uint8] | None,
) -> dict[int, Region]:
    """The band's own regions by label, without those that have no data."""
    polygons = _polygons(labels, len(class_of), rows.top)
    if tolerance:
        polygons[1:] = simplify_pieces(polygons[1:], rows.classes, rows.top, above, below, tolerance)
    flat = labels.ravel()
    pixels = np.bincount(flat, minlength=len(class_of))
    areas = grid.sum_areas(labels, len(class_of), rows.top)
    sure = np.zeros(len(class_of))
    if rows.confidence is not None:
        sure += np.bincount(flat, rows.confidence.ravel(), len(class_of))
    return {
        k: Region(int(class_of[k]), [polygons[k]], int(pixels[k]), float(areas[k]), float(sure[k]))
        for k in np.flatnonzero(class_of != NODATA)[1:].tolist()
    }


def _polygons(labels: NDArray[np.int32], count: int, top: int) -> NDArray[Any]:
    """The outline of every label; entry 0 stays empty."""
    import shapely
    from rasterio import Affine, features

    polygons = np.empty(count, object)
    for shape, label in features.shapes(labels, connectivity=4, transform=Affine.translation(0, top)):
        shell, *holes = shape["coordinates"]
        polygons[int(label)] = shapely.Polygon(shell, holes)
    return polygons


def _with_next_row(bands: Iterable[MapRows]) -> Iterator[tuple[MapRows, NDArray[np.uint8] | None]]:
    """Bands with at least one row, each with the row below it."""
    held: MapRows | None = None
    for rows in bands:
        if not len(rows.classes):
            continue
        if held is not None:
            yield held, rows.classes[0]
        held = rows
    if held is not None:
        yield held, None
