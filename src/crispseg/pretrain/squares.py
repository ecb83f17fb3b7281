"""Squares cut from images of any size and depth, side by side, but for those with nothing on them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crispseg.data.images import Array, read_header, read_image, read_nodata
from crispseg.nodata import is_data
from crispseg.threads import available_cores

_BANDS = 3
_EMPTY = 0.95  # share of a square without data, or of one colour, from which on there is nothing to learn from it
_THREADS = 8  # that look at images; each holds one


class Windows:
    """Squares of `side` pixels; `notes` says what of the images was left out."""

    classes: tuple[str, ...] = ()

    def __init__(self, files: Sequence[Path], side: int) -> None:
        self.side, self.labels, self.files = side, np.empty(0, np.int64), files
        with ThreadPoolExecutor(min(_THREADS, available_cores())) as pool:
            found = list(pool.map(lambda path: _look(path, side), files))
        self._places = [(path, *corner) for path, image in zip(files, found, strict=True) for corner in image.kept]
        self.cut = sum(image.cut for image in found)  # squares, with those that were left out
        empty = self.cut - len(self._places)
        note = f"{empty} of {self.cut} squares left out: without data, or of one colour" if empty else ""
        several = next((image.note for image in found if image.note), "")
        self.notes = tuple(filter(None, (several, note)))
        self._last: tuple[Path, Array] | None = None

    def __len__(self) -> int:
        return len(self._places)

    def read(self, index: int) -> Array:
        path, top, left = self._places[index]
        last = self._last  # neighbours come one after the other
        if last is None or last[0] != path:
            self._last = last = (path, _read(path)[0])
        return last[1][top : top + self.side, left : left + self.side]

    def name(self, index: int) -> str:
        path, top, left = self._places[index]
        return f"{path} at row {top}, column {left}"


class _Image(NamedTuple):
    cut: int  # squares
    kept: list[tuple[int, int]]  # upper left corners of those that show something
    note: str  # about its bands


def _look(path: Path, side: int) -> _Image:
    header = read_header(path)
    rows, columns = (range(0, length - side + 1, side) for length in (header.height, header.width))
    corners = [(top, left) for top in rows for left in columns]
    if not corners:
        return _Image(0, [], "")
    image, seen = _read(path)
    places = [(slice(top, top + side), slice(left, left + side)) for top, left in corners]
    kept = [corner for corner, at in zip(corners, places, strict=True) if not _shows_nothing(image[at], seen[at])]
    return _Image(len(corners), kept, _about_bands(header.bands, path))


def _shows_nothing(image: Array, seen: NDArray[np.bool_]) -> bool:
    """Whether hardly a pixel has data, or nearly all have one colour, which is then the median's."""
    middle = np.median(image[::4, ::4], axis=(0, 1))
    return bool(seen.mean() <= 1 - _EMPTY or (image == middle).all(-1).mean() >= _EMPTY)


def _read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """An image as it is learnt from, and where it has data."""
    image = read_image(path)
    seen = _has_data(image[..., :_BANDS], read_nodata(path))
    return three_bands(image, seen), seen


def _has_data(image: Array, nodata: float | None) -> NDArray[np.bool_]:
    """(H, W) where some band was measured"""
    measured = is_data(image) if image.dtype.kind == "f" else np.ones(image.shape, bool)
    return np.asarray((measured if nodata is None else measured & (image != nodata)).any(-1))


def three_bands(image: Array, seen: NDArray[np.bool_] | None = None) -> NDArray[np.uint8]:
    """The first three bands (a single one three times) in 8 bits; deeper ones are stretched from 2 to 98 percent of
    what has data."""
    image = image[..., :_BANDS] if image.shape[-1] >= _BANDS else np.repeat(image[..., :1], _BANDS, axis=-1)
    if image.dtype == np.uint8:
        return np.ascontiguousarray(image)
    seen = _has_data(image, None) if seen is None else seen
    if not seen.any():
        return np.zeros(image.shape, np.uint8)
    values = np.where(is_data(image), image, 0).astype(np.float32)
    low, high = np.percentile(values[seen], (2, 98), axis=0)
    stretched = (values - low) / np.maximum(high - low, 1e-6) * 255
    return (stretched.clip(0, 255) * seen[..., None]).astype(np.uint8)


def band_note(path: Path) -> str:
    """What is to be said of an image with more bands than are learnt from."""
    return _about_bands(read_header(path).bands, path)


def _about_bands(bands: int, path: Path) -> str:
    return f"bands 1, 2 and 3 are taken where there are more, as in {path.name} with {bands}" if bands > _BANDS else ""
