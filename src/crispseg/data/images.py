"""Reading image and mask files (png, jpg, tif; 8 or 16 bit or float; any band count) as numpy arrays.

rasterio is asked only for what pillow cannot do (16-bit or multi-band tif, 16-bit colour png), and only then
imported, so that machines without it still read everyday files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg import memory
from crispseg.errors import UserError
from crispseg.reading import DAMAGE, reason, require_file

Array = NDArray[Any]
Place = tuple[float, ...]  # a b c d e f: x = a column + b row + c, y = d column + e row + f
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
    array = array * np.uint8(255) if array.dtype == np.bool_ else array
    return array if array.ndim == 3 else array[..., None]


def read_mask(source: Path | bytes, name: str | None = None, *, colours: bool = False) -> Array:
    """(H, W) of values or (H, W, 3 or 4) of colours; palette pictures come out as their indices, unless their
    `colours` are wanted. A picture of one bit is of type bool: its file does not say whether on is 1 or 255."""
    array = _read(source, name or str(source), palette_as_ids=not colours)
    return array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array


def read_palette(source: Path | bytes, name: str | None = None) -> Array | None:
    """(entries, 3) colours of a palette picture; None for any other."""
    name = name or str(source)
    if _needs_rasterio(source, name):
        return None
    with _explaining(name), _pillow(source, name) as picture:
        if picture.mode != "P":
            return None
        picture.load()  # a png's palette comes before its pixels, a tif's with them
        return np.array(picture.getpalette("RGB") or [], np.uint8).reshape(-1, 3)


def read_header(source: Path | bytes, name: str | None = None) -> Header:
    """Size, bands and type without decoding; a file cut short is noticed."""
    name = name or str(source)
    _refuse_cut(source, name)
    if _needs_rasterio(source, name):
        with _rasterio(source, name) as file:
            return _raster_header(file)
    with _explaining(name), _pillow(source, name) as picture:
        return _picture_header(picture)


def read_nodata(path: Path) -> float | None:
    """The value that a tif says stands for no data, if it says so."""
    if not _is_tif(path):
        return None
    if _needs_rasterio(path, str(path)):
        with _rasterio(path, str(path)) as file:
            return None if file.nodata is None else float(file.nodata)
    with _explaining(str(path)), _pillow(path, str(path)) as picture, contextlib.suppress(ValueError):
        return float(str(picture.tag_v2.get(_NODATA, "none")).strip(" \0"))
    return None


def read_place(path: Path) -> Place | None:
    """Where the pixels of a GeoTIFF lie on the ground; None for any other file, and where rasterio is missing."""
    if not _is_tif(path) or importlib.util.find_spec("rasterio") is None:
        return None
    with _rasterio(path, str(path)) as file:
        place: Place = tuple(file.transform)[:6]
        return None if file.transform.is_identity or file.transform.is_degenerate else place


def is_turned(path: Path) -> bool:
    """Whether a note in the file (EXIF's orientation) says that it is to be shown otherwise than its pixels lie."""
    name = str(path)
    with contextlib.suppress(UserError), _explaining(name), _pillow(path, name) as picture:  # rasterio reads the others
        notes = picture.tag_v2 if _is_tif(path) else picture.getexif() if "exif" in picture.info else {}
        return int(notes.get(_ORIENTATION, 1)) in _TURNED
    return False


def _is_tif(path: Path) -> bool:
    return _start(path, str(path))[:4] in _TIFF


def _raster_header(file: Any) -> Header:
    if file.count > _MOST_BANDS:
        raise UserError(f"{file.name} has {file.count} bands; {_MOST_BANDS} at most are read")
    return Header(file.width, file.height, file.count, str(np.result_type(*file.dtypes)))


_MOST_BANDS = 1000  # no sensor has more; GDAL takes long to open each


def _picture_header(picture: Any) -> Header:
    bands, dtype = _MODES.get(picture.mode, (len(picture.getbands()), "uint8"))
    return Header(picture.width, picture.height, bands, dtype)


_OTHER_COLOURS = ("CMYK", "YCbCr", "LAB", "HSV")

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
            _refuse_large(_raster_header(file), name)
            bands: Array = file.read()  # (bands, H, W)
            return np.ascontiguousarray(np.moveaxis(bands, 0, -1))
    with _explaining(name), _pillow(source, name) as picture:
        _refuse_large(_picture_header(picture), name)
        if picture.mode in (*_OTHER_COLOURS, *(() if palette_as_ids else ("P", "PA"))):
            picture = picture.convert("RGB")
        array = np.asarray(picture)
        if array.ndim not in (2, 3):
            raise UserError(f"{name} cannot be read as an image: pillow makes {picture.mode} pixels of it")
        return array


def _refuse_large(header: Header, name: str) -> None:
    """A few bytes can claim any size; what would not fit is refused before it is made."""
    size = header.width * header.height * header.bands * np.dtype(header.dtype).itemsize
    if size > _SMALL and _COPIES * size > memory.free():
        raise UserError(
            f"{name} is {header.width} x {header.height} px: decoding it takes {_COPIES * size / 2**30:.1f} GiB, and "
            f"{memory.free() / 2**30:.1f} are free; cut it into tiles"
        )


_SMALL = 64 << 20  # bytes that are not worth asking the system about
_COPIES = 2.5  # pillow's own pixels (four bytes for three), the array, and what is made of it


def _pillow(source: Path | bytes, name: str) -> Any:
    """By its first bytes, and past `Image.open`: that refuses what is larger than a picture on a web page, unless its
    guard is off for the whole process; and it tries formats that run other programs."""
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile
    from PIL.TiffImagePlugin import TiffImageFile
    from PIL.WebPImagePlugin import WebPImageFile

    start = _start(source, name)
    kinds: dict[bytes, Any] = {
        _PNG: PngImageFile,
        _JPG: JpegImageFile,
        _WEBP: WebPImageFile,
        **dict.fromkeys(_TIFF, TiffImageFile),
    }
    kind = next((kind for magic, kind in kinds.items() if start.startswith(magic)), None)
    if kind is None:
        raise UserError(f"{name} cannot be read as an image: it is neither png, jpg, tif nor webp")
    with _explaining(name), warnings.catch_warnings(), _quiet_pillow():
        warnings.simplefilter("ignore")  # pillow warns of a broken directory, then fails
        return kind(io.BytesIO(source) if isinstance(source, bytes) else source)


@contextlib.contextmanager
def _quiet_pillow() -> Iterator[None]:
    """Of a tif with many bands pillow prints a line at every opening, then fails; rasterio reads it."""
    logger = logging.getLogger("PIL.TiffImagePlugin")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


@contextlib.contextmanager
def _rasterio(source: Path | bytes, name: str) -> Iterator[Any]:
    try:
        import rasterio
        from rasterio._err import CPLE_BaseError
    except ImportError:
        raise UserError(f"{name} needs rasterio: install it, or save the file as 8-bit png") from None
    with _explaining(name, rasterio.errors.RasterioError, CPLE_BaseError), warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        opened = io.BytesIO(source) if isinstance(source, bytes) else source
        driver = "PNG" if _start(source, name).startswith(_PNG) else "GTiff"  # no other may look at it
        with rasterio.open(opened, driver=driver) as file:
            yield file


@contextlib.contextmanager
def _explaining(name: str, *also: type[Exception]) -> Iterator[None]:
    """Whatever pillow (and `also` GDAL) raises on a damaged file becomes one sentence."""
    damage: tuple[type[Exception], ...] = (*DAMAGE, *also)
    try:
        yield
    except damage as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> UserError:
    return UserError(f"{name} cannot be read as an image: {reason(error)}")


def _needs_rasterio(source: Path | bytes, name: str) -> bool:
    start = _start(source, name)
    if start.startswith(_PNG):
        bit_depth, colour_type = start[24], start[25]
        return bit_depth == 16 and colour_type != 0  # pillow reads these as 8 bit
    if start[:4] not in _TIFF:
        return False
    try:
        with _explaining(name), _pillow(source, name) as picture:
            few = picture.mode == "L" and picture.tag_v2.get(_BITS, (8,))[0] < 8  # pillow spreads them over 0 to 255
            return few or (picture.mode, picture.tag_v2.get(_SAMPLES, 1)) not in _PLAIN_TIFS
    except UserError:
        return True


_WEBP = b"RIFF"  # only in shards and folders of pictures to pretrain on
_JPG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_PLAIN_TIFS = {("1", 1), ("L", 1), ("P", 1), ("I;16", 1), ("F", 1), ("RGB", 3), ("RGBX", 4), ("RGBA", 4)}
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# numbers of tif tags; the last is GDAL's
_BITS, _ORIENTATION = 258, 274
_TURNED = range(2, 9)  # of the orientation's values; 1 is upright, and some cameras write 0
_SAMPLES, _STRIPS, _STRIP_BYTES, _TILES, _TILE_BYTES, _NODATA = 277, 273, 279, 324, 325, 42113


def _start(source: Path | bytes, name: str, count: int = 26) -> bytes:
    """Enough of the file to tell its kind."""
    if not isinstance(source, bytes):
        require_file(source, "image")
    try:
        data = source[:count] if isinstance(source, bytes) else _bytes_at(source, 0, count)
    except OSError as error:
        raise UserError(f"cannot read {name}: {reason(error)}") from error
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
    """Where the last strip or tile of pixels ends; 0 where the file does not say."""
    try:
        with _explaining(name), _pillow(source, name) as picture:
            tags = picture.tag_v2
            starts = tags.get(_STRIPS) or tags.get(_TILES) or (0,)
            lengths = tags.get(_STRIP_BYTES) or tags.get(_TILE_BYTES) or (0,)
            return int(max(a + b for a, b in zip(starts, lengths, strict=False)))
    except UserError:
        return 0  # a kind pillow does not know; rasterio will tell
