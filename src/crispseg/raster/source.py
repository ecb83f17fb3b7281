"""Where pixels come from: anything that can read a window. Beyond its edges and where it has no data, a scene is shown
mirrored: here, for every source."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.nodata import is_data, mirrored


class Window(NamedTuple):
    top: int
    left: int
    height: int
    width: int


class Pixels(NamedTuple):
    """Raw values with the gaps filled, and where the scene has data at all."""

    values: NDArray[Any]  # (bands, h, w), uint8, int16 or float32
    present: NDArray[np.bool_]  # (h, w)


class Source(Protocol):
    """A scene that can be read window by window, from several threads at once."""

    height: int
    width: int

    def read(self, window: Window) -> Pixels:
        """The pixels of a window that lies inside the scene."""
        ...

    def reading(self, rows: int) -> contextlib.AbstractContextManager[None]:
        """Open while tiles of so many rows are read."""
        ...

    def close(self) -> None: ...


class ArraySource:
    """An image in memory (or memory-mapped): (H, W) or (H, W, bands), with an optional mask of its data,
    of its pixels or of every band's."""

    def __init__(self, image: NDArray[Any], fill: tuple[float, ...], present: NDArray[np.bool_] | None = None):
        if image.ndim not in (2, 3):
            raise UserError(f"an image must be (height, width) or (height, width, bands), not {image.shape}")
        self.image = image if image.ndim == 3 else image[:, :, None]
        self.height, self.width, bands = self.image.shape
        if bands != len(fill):
            order = "; an array is (height, width, bands)" if len(image) == len(fill) else ""
            raise UserError(f"the image has {bands} bands and the model takes {len(fill)}{order}")
        if present is not None and present.shape not in ((self.height, self.width), self.image.shape):
            raise UserError(f"the mask is {present.shape} and the image {(self.height, self.width)}")
        self.fill = fill
        self.present = present if present is None or present.ndim == 3 else present[:, :, None]

    def read(self, window: Window) -> Pixels:
        rows = slice(window.top, window.top + window.height)
        cols = slice(window.left, window.left + window.width)
        values = np.moveaxis(self.image[rows, cols], 2, 0)
        has_data = None
        if self.present is not None:
            has_data = np.broadcast_to(np.moveaxis(self.present[rows, cols], 2, 0), values.shape)
        return fill_gaps(values, has_data, self.fill)

    def reading(self, rows: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def close(self) -> None:
        """Nothing is held open."""


def fill_gaps(values: NDArray[Any], has_data: NDArray[np.bool_] | None, fill: tuple[float, ...]) -> Pixels:
    """Replace missing values (also NaN, infinity and huge fillers) by each band's mean.

    A pixel is present if any band has data. Both arrays are (bands, h, w); None says that nothing is missing.
    """
    if values.dtype.kind == "f":
        measured = is_data(values)
        has_data = measured if has_data is None else has_data & measured
    elif values.dtype.kind not in "iub":
        raise UserError(f"pixels of type {values.dtype} cannot be segmented; convert them to real numbers")
    with np.errstate(over="ignore"):  # fillers that are replaced below
        values = values.astype(_working_type(values.dtype), copy=False)
    if has_data is None or has_data.all():
        return Pixels(np.ascontiguousarray(values), np.ones(values.shape[1:], bool))
    values = values.copy()
    for band, mean in enumerate(fill):
        values[band][~has_data[band]] = _as_type(mean, values.dtype)
    return Pixels(values, np.logical_or.reduce(has_data, axis=0))


def read_reflected(source: Source, window: Window) -> Pixels:
    """What a network is shown of a window that may reach beyond the scene: reflection (or repetition, of one pixel) is
    outside, and where there is no data."""
    rows = reflected(window.top, window.height, source.height)
    cols = reflected(window.left, window.width, source.width)
    top, left = int(rows.min()), int(cols.min())
    inside = Window(top, left, int(rows.max()) - top + 1, int(cols.max()) - left + 1)
    pixels = source.read(inside)
    if inside != window:
        rows, cols = (rows - top)[:, None], cols - left
        pixels = Pixels(np.ascontiguousarray(pixels.values[:, rows, cols]), pixels.present[rows, cols])
    return Pixels(mirrored(pixels.values, pixels.present), pixels.present)


def reflected(start: int, count: int, length: int) -> NDArray[np.int64]:
    """Scene positions seen at start ... start + count - 1 when the scene is mirrored about its outermost pixels."""
    positions = np.arange(start, start + count)
    if length == 1:
        return np.zeros(count, np.int64)
    period = 2 * (length - 1)
    positions = positions % period
    return np.minimum(positions, period - positions)


def _working_type(dtype: np.dtype[Any]) -> type[np.generic]:
    """The smallest type that torch takes everywhere and that holds the values."""
    if dtype == np.uint8 or dtype == np.bool_:
        return np.uint8
    return np.int16 if dtype in (np.dtype(np.int8), np.dtype(np.int16)) else np.float32


def _as_type(value: float, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        return value
    limits = np.iinfo(dtype)
    return int(min(max(round(value), limits.min), limits.max))
