"""Where an image has no data. `crisp predict` maps nothing there, so nothing is learnt or scored there either."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crispseg.data.images import Array
from crispseg.nodata import is_data

Gaps = NDArray[np.bool_] | None  # (H, W), or None where there are none


def find_gaps(image: Array, nodata: float | None) -> tuple[Array, Gaps]:
    """An image (H, W, bands) with NaN (0 among whole numbers) where it has no data, and which pixels are not to be
    learnt: those of real numbers that lack a band, and those of whole numbers that lack all, as a dark pixel may hold
    the filler of a collar by chance. `nodata` is the number that its file calls no data."""
    real = image.dtype.kind == "f"
    if nodata is None and not real:
        return image, None
    missing = ~is_data(image) if real else np.zeros(image.shape, bool)
    if nodata is not None:
        missing |= image == nodata
    gaps: NDArray[np.bool_] = (np.logical_or if real else np.logical_and).reduce(missing, axis=-1)
    if not gaps.any():
        return image, None
    if real:
        return np.where(missing, image.dtype.type(np.nan), image), gaps
    return np.where(gaps[..., None], image.dtype.type(0), image), gaps
