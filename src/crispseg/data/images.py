"""Reading image and mask files (png, jpg, tif; 8 or 16 bit or float; any band count) as numpy arrays.

rasterio is asked only for what pillow cannot do (16-bit or multi-band tif, 16-bit colour png), and only then
imported, so that machines without it still read everyday files.
"""

from __future__ import annotations

import dataclasses
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError

Array = NDArray[Any]
SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")


@dataclasses.dataclass(frozen=True)
class Header:
    width: int
    height: int
    bands: int
    dtype: str


def read_image(source: Path | bytes, name: str | None = None) -> Array:
    """(H, W, bands) in the file's own type; palette pictures come out as RGB. `name` is for messages."""
    array = _read(source, name or str(source), palette_as_ids=False)
    return array if array.ndim == 3 else array[..., None]


def read_mask(source: Path | bytes, name: str | None = None) -> Array:
    """(H, W) of values or (H, W, 3 or 4) of colours; palette pictures come out as their indices."""
    array = _read(source, name or str(source), palette_as_ids=True)
    return array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array


def read_header(source: Path | bytes, name: str | None = None) -> Header:
    """Size, bands and type without decoding; a file cut short is noticed."""
    name = name or str(source)
    _refuse_cut(source, name)
    if _needs_rasterio(source, name):
        with _rasterio(source, name) as file:
            return Header(file.width, file.height, file.count, str(np.result_type(*file.dtypes)))
    with _pillow(source, name) as picture:
        bands, dtype = _MODES.get(picture.mode, (len(picture.getbands()), "uint8"))
        return Header(picture.width, picture.height, bands, dtype)


# What numpy makes of pillow's modes, where it is not one uint8 per band; palette pictures count as RGB.
_MODES = {
    "P": (3, "uint8"),
    "PA": (3, "uint8"),
    "I": (1, "int32"),
    "I;16": (1, "uint16"),
    "F": (1, "float32"),
}


def _read(source: Path | bytes, name: str, palette_as_ids: bool) -> Array:
    _refuse_cut(source, name)
    if _needs_rasterio(source, name):
        with _rasterio(source, name) as file:
            try:
                bands: Array = file.read()  # (bands, H, W)
            except OSError as error:
                raise _unreadable(name, error) from error
            return np.ascontiguousarray(np.moveaxis(bands, 0, -1))
    with _pillow(source, name) as picture:
        try:
            if picture.mode in ("P", "PA") and not palette_as_ids:
                picture = picture.convert("RGB")
            elif picture.mode in ("1", "CMYK", "YCbCr", "LAB", "HSV"):
                picture = picture.convert("L" if picture.mode == "1" else "RGB")
            return np.asarray(picture)
        except (OSError, SyntaxError, ValueError) as error:
            raise _unreadable(name, error) from error


def _pillow(source: Path | bytes, name: str) -> Any:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # orthophotos are larger than pillow's guard against hostile web uploads
    try:
        return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
    except (OSError, SyntaxError, ValueError) as error:
        raise _unreadable(name, error) from error


def _rasterio(source: Path | bytes, name: str) -> Any:
    try:
        import rasterio
    except ImportError:
        raise UserError(f"{name} needs rasterio: install it, or save the file as 8-bit png") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
            return rasterio.open(io.BytesIO(source) if isinstance(source, bytes) else source)
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> UserError:
    return UserError(f"{name} cannot be read as an image: {' '.join(str(error).split()) or type(error).__name__}")


def _needs_rasterio(source: Path | bytes, name: str) -> bool:
    start = _start(source, name)
    if start.startswith(_PNG):
        bit_depth, colour_type = start[24], start[25]
        return bit_depth == 16 and colour_type != 0  # pillow reads these as 8 bit
    if start[:4] not in _TIFF:
        return False
    try:
        with _pillow(source, name) as picture:
            return (picture.mode, picture.tag_v2.get(_SAMPLES, 1)) not in _PLAIN_TIFS
    except UserError:
        return True


_PNG = b"\x89PNG\r\n\x1a\n"
_PLAIN_TIFS = {("1", 1), ("L", 1), ("P", 1), ("I;16", 1), ("F", 1), ("RGB", 3), ("RGBX", 4), ("RGBA", 4)}
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_SAMPLES, _STRIPS, _STRIP_BYTES, _TILES, _TILE_BYTES = 277, 273, 279, 324, 325  # numbers of tif tags


def _start(source: Path | bytes, name: str, count: int = 26) -> bytes:
    """Enough of the file to tell its kind."""
    try:
        data = source[:count] if isinstance(source, bytes) else _bytes_at(source, 0, count)
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}") from error
    if len(data) < count:
        raise UserError(f"{name} cannot be read as an image: it has only {len(data)} bytes")
    return data


def _bytes_at(path: Path, offset: int, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(count)


def _refuse_cut(source: Path | bytes, name: str) -> None:
    """Notice a download that stopped early without decoding: a png lacks its end, a tif its last strip."""
    start = _start(source, name)
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    if start.startswith(_PNG):
        tail = max(size - 64, 0)
        whole = b"IEND" in (source[tail:] if isinstance(source, bytes) else _bytes_at(source, tail, 64))
    elif start[:4] in _TIFF:
        whole = _tif_end(source, name) <= size
    else:
        return
    if not whole:
        raise UserError(f"{name} is cut short: its end is missing; copy or download it again")


def _tif_end(source: Path | bytes, name: str) -> int:
    """Where the last strip or tile of pixels ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pillow warns of a broken directory, then fails
        try:
            with _pillow(source, name) as picture:
                tags = picture.tag_v2
                starts = tags.get(_STRIPS) or tags.get(_TILES) or (0,)
                lengths = tags.get(_STRIP_BYTES) or tags.get(_TILE_BYTES) or (0,)
        except UserError:
            return 0  # a kind pillow does not know; rasterio will tell
    return max(a + b for a, b in zip(starts, lengths, strict=False))
