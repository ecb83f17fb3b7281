"""A scene seen at another resolution: linear interpolation, with a wider filter when shrinking so nothing aliases.

Each output pixel depends only on its own place, never on the window it was read in, so tiles agree where they overlap.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.raster.products import NODATA
from crispseg.raster.source import Pixels, Source, Window

_ROWS = 256  # of a class map that are made at a time


class ResampledSource:
    """`source` stretched to `height` x `width` pixels over the same ground; `fill` is each band's mean."""

    def __init__(self, source: Source, height: int, width: int, fill: tuple[float, ...]):
        self.source, self.height, self.width = source, height, width
        self.fill = np.asarray(fill, np.float32)[:, None, None]

    def read(self, window: Window) -> Pixels:
        top, row_filter = interpolation(window.top, window.height, self.height, self.source.height)
        left, col_filter = interpolation(window.left, window.width, self.width, self.source.width)
        pixels = self.source.read(Window(top, left, row_filter.shape[1], col_filter.shape[1]))

        def filtered(image: NDArray[Any]) -> NDArray[np.float32]:
            rows = row_filter @ image.astype(np.float32)  # (h, source columns)
            return (col_filter @ rows.T).T

        share = filtered(pixels.present)  # how much of each output pixel has data
        values = np.stack([filtered(band * pixels.present) for band in pixels.values])
        present = share >= 0.5
        return Pixels(np.where(present, values / np.maximum(share, 0.5), self.fill), present)

    def reading(self, rows: int) -> contextlib.AbstractContextManager[None]:
        return self.source.reading(math.ceil(rows * self.source.height / self.height) + 2)

    def close(self) -> None:
        self.source.close()


def classes_over(source: Source, classes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Class ids of a map of the same ground, at the size of `source`: of those around a pixel the one with the most
    weight, by the filter that pixels are resampled with; no data exactly where `source` has none, or the map."""
    height, width = source.height, source.width
    left, col_filter = interpolation(0, width, width, classes.shape[1])
    columns = slice(left, left + col_filter.shape[1])
    fitted = np.full((height, width), NODATA, np.uint8)
    with source.reading(_ROWS):
        for top in range(0, height, _ROWS):
            here = fitted[top : top + _ROWS]
            first, row_filter = interpolation(top, len(here), height, classes.shape[0])
            part = classes[first : first + row_filter.shape[1], columns]
            most = np.zeros(here.shape, np.float32)
            for class_id in np.flatnonzero(np.bincount(part.ravel(), minlength=NODATA)[:NODATA]):
                weight = (col_filter @ (row_filter @ (part == class_id).astype(np.float32)).T).T
                here[weight > most] = class_id
                np.maximum(most, weight, out=most)
            here[~source.read(Window(top, 0, len(here), width)).present] = NODATA
    return fitted


def interpolation(start: int, count: int, length: int, source_length: int) -> tuple[int, Any]:
    """The first source pixel needed for outputs start ... start + count - 1, and the sparse (count, needed) filter."""
    from scipy.sparse import csr_array

    scale = source_length / length
    reach = max(scale, 1.0)
    centres = (np.arange(start, start + count) + 0.5) * scale - 0.5
    taps = np.arange(math.ceil(2 * reach) + 1)
    positions = np.floor(centres - reach)[:, None].astype(np.int64) + 1 + taps  # (count, taps)
    weights = np.maximum(0.0, 1 - np.abs(positions - centres[:, None]) / reach)
    weights[(positions < 0) | (positions >= source_length)] = 0.0  # the edge pixel takes their share
    weights /= weights.sum(axis=1, keepdims=True)
    used = weights > 0
    first = int(positions[used].min()) if used.any() else 0
    needed = int(positions[used].max()) + 1 - first if used.any() else 0
    rows = np.broadcast_to(np.arange(count)[:, None], positions.shape)
    entries = (weights[used].astype(np.float32), (rows[used], positions[used] - first))
    return first, csr_array(entries, shape=(count, needed))
