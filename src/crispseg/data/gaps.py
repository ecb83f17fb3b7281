"""Where an image has no data. `crisp predict` maps nothing there, so nothing is learnt or scored there either."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crispseg.data.images import Array
from crispseg.nodata import is_data


class Gapped(NamedTuple):
    """An image and what it lacks; None where nothing is missing."""

    image: Array  # (H, W, bands), missing values NaN, or 0 among whole numbers
    measured: NDArray[np.bool_] | None  # (H, W, bands)
    unlearnt: NDArray[np.bool_] | None  # (H, W)


def find_gaps(image: Array, nodata: float | None) -> Gapped:
    """`nodata` is the number that the image's file calls no data. Not to be learnt are pixels of real numbers that lack
    a band, and those of whole numbers that lack all, as a dark pixel may hold the filler of a collar by chance."""
    real = image.dtype.kind == "f"
    if nodata is None and not real:
        return Gapped(image, None, None)
    missing = ~is_data(image) if real else np.zeros(image.shape, bool)
    if nodata is not None:
        missing |= image == nodata
    if not missing.any():
        return Gapped(image, None, None)
    unlearnt: NDArray[np.bool_] = (np.logical_or if real else np.logical_and).reduce(missing, axis=-1)
    return Gapped(np.where(missing, image.dtype.type(np.nan if real else 0), image), ~missing, unlearnt)
