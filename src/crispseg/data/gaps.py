"""Where an image has no data. `crisp predict` maps nothing there, so nothing is learnt or scored there either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crispseg.data.images import Array
from crispseg.nodata import is_data, mirrored


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


def as_shown(gapped: Gapped, mean: Sequence[float]) -> Array:
    """(H, W, bands) as `crisp predict` shows it to a network: each band's `mean` where single bands have no data, and
    mirrored where all lack it. Without a mean, whole numbers are 0 there, and pixels of real ones mirrored."""
    image, measured, unlearnt = gapped
    if measured is None or unlearnt is None:
        return image
    present: NDArray[np.bool_] = np.logical_or.reduce(measured, axis=-1) if mean else ~unlearnt
    if mean:
        usual = np.array(mean, np.float64)
        if image.dtype.kind in "iu":
            limits = np.iinfo(image.dtype)
            usual = usual.round().clip(limits.min, limits.max)
        image = np.where(measured | ~present[..., None], image, usual.astype(image.dtype))
    return np.moveaxis(mirrored(np.moveaxis(image, 2, 0), present), 0, 2)
