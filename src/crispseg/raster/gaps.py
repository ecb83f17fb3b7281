"""What a network is shown where a tile has no data: the scene mirrored there, as it is beyond the scene's edges.

An even colour is an object to a network: beside margins of it, a class was taken for another far into the scene.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.raster.source import Pixels

_TURNS = 16  # how often a place is mirrored again that has no data itself


def mirror_gaps(pixels: Pixels) -> Pixels:
    """Pixels without any data take the values of others that have some; `present` stays as it is."""
    missing = ~pixels.present
    if not missing.any() or missing.all():
        return pixels
    rows, columns = _mirrored(pixels.present)
    values = pixels.values.copy()
    values[:, missing] = values[:, rows, columns]
    return Pixels(values, pixels.present)


def _mirrored(present: NDArray[np.bool_]) -> NDArray[Any]:
    """(2, n) places with data for the n missing pixels: mirrored about the nearest such place, until they have some."""
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
