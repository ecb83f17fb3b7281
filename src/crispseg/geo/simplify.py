"""Simpler outlines whose shared edges stay shared.

GEOS simplifies a coverage (polygons that meet edge to edge) arc by arc. For that, every polygon must have a vertex
where three or more meet; pixel outlines lack those that lie on a straight side, so they are put in first. Vertices on
the frame of a band stay, so bands can be simplified one after the other and still fit together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_OUTSIDE = -1


def simplify_pieces(
    polygons: NDArray[Any],
    classes: NDArray[np.uint8],
    top: int,
    above: NDArray[np.uint8] | None,
    below: NDArray[np.uint8] | None,
    tolerance: float,
) -> NDArray[Any]:
    """The polygons of a band that together cover it, simplified; `above` and `below` are the neighbouring rows."""
    import shapely

    meeting = meeting_points(classes, above, below)
    noded = _with_vertices_at(polygons, meeting, top)
    return shapely.coverage_simplify(noded, tolerance, simplify_boundary=False)


def meeting_points(
    classes: NDArray[np.uint8], above: NDArray[np.uint8] | None, below: NDArray[np.uint8] | None
) -> NDArray[np.bool_]:
    """(rows + 1, width + 1) pixel corners where outlines branch: three or four of the four sides are edges."""
    rows, width = classes.shape
    framed = np.full((rows + 2, width + 2), _OUTSIDE, np.int16)
    framed[1:-1, 1:-1] = classes
    if above is not None:
        framed[0, 1:-1] = above
    if below is not None:
        framed[-1, 1:-1] = below
    across = framed[:, 1:] != framed[:, :-1]  # edges between left and right pixels
    down = framed[1:] != framed[:-1]  # edges between upper and lower pixels
    edges = across[:-1].astype(np.int8) + across[1:] + down[:, :-1] + down[:, 1:]
    return edges >= 3


def _with_vertices_at(polygons: NDArray[Any], meeting: NDArray[np.bool_], top: int) -> NDArray[Any]:
    """Put a vertex at every pixel corner along the outlines, then keep the turns and the meeting points."""
    import shapely

    rings, polygon_of = shapely.get_rings(polygons, return_index=True)
    points, ring_of = shapely.get_coordinates(shapely.segmentize(rings, 1.0), return_index=True)
    points = np.rint(points)
    first = np.r_[True, ring_of[1:] != ring_of[:-1]]
    last = np.r_[ring_of[1:] != ring_of[:-1], True]
    step = np.diff(points, axis=0, prepend=points[:1])
    turns = np.r_[(step[1:] != step[:-1]).any(axis=1), True]  # a ring's first and last point are turns
    x, y = points.T.astype(np.int64)
    keep = first | last | turns | meeting[y - top, x]
    outlines = shapely.linearrings(points[keep], indices=ring_of[keep])
    return np.asarray(shapely.polygons(outlines, indices=polygon_of), object)
