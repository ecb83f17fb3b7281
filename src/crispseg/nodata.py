"""Which numbers are data: not NaN, not infinity, and none of the huge numbers that stand for a gap unasked.

Where there are none a network is shown the image mirrored, as it is beyond its edges: an even colour is an object
to it, and beside margins of one a class was taken for another far into the image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_TURNS = 16  # how often a place is mirrored again that has no data itself
LARGEST = 1e15  # beyond what any sensor counts; the usual fillers (1e20, 9.97e36, 3.4e38, 1e300) lie far above


def is_data(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Of floating-point numbers, those that were measured."""
    with np.errstate(invalid="ignore"):
        found: NDArray[np.bool_] = np.abs(values) < LARGEST  # False for NaN
    return found


def mirrored(values: NDArray[Any], present: NDArray[np.bool_]) -> NDArray[Any]:
    """(bands, h, w) with the values of other places where not `present` (h, w); as they are where all or none is."""
    missing = ~present
    if not missing.any() or missing.all():
        return values
    values = values.copy(order="K")
    rows, columns = _mirrored_places(present)
    values[:, missing] = values[:, rows, columns]
    return values


def _mirrored_places(present: NDArray[np.bool_]) -> NDArray[Any]:
    """(2, n) places with data for the n pixels without: mirrored about the nearest such place, until they have some."""
    from scipy.ndimage import distance_transform_edt

    nearest = distance_transform_edt(~present, return_distances=False, return_indices=True)
    last = np.array(present.shape)[:, None] - 1
    places = np.array(np.nonzero(~present))
    for _ in range(_TURNS):
        lost = ~present[places[0], places[1]]
        if not lost.any():
            return places
        away = places[:, lost]
        places[:, lost] = np.clip(2 * nearest[:, away[0], away[1]] - away, 0, last)
    return np.asarray(nearest[:, places[0], places[1]])  # itself, where it has data
