"""What a VRT reads: GDAL's text files that put rasters together can also read any file as pixels, or the network."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from xml.etree import ElementTree

from crispseg.errors import UserError

_LARGEST = 64 << 20  # bytes of text
_SOURCES = ("SourceFilename", "SourceDataset")
_PLAIN = {  # kinds of data sets and bands that are made of other rasters alone
    "VRTWarpedDataset",
    "VRTPansharpenedDataset",
    "VRTSourcedRasterBand",
    "VRTWarpedRasterBand",
    "VRTPansharpenedRasterBand",
    "VRTDerivedRasterBand",
}
_RASTERS = (  # how files begin that drivers without side effects read
    *(b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),  # TIFF
    *(b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM", b"GIF8", b"RIFF", b"EHFA_HEADER_TAG"),
    *(b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"),  # JPEG 2000
    b"SQLite format 3\0",  # GeoPackage
)


def check_vrt(path: str) -> None:
    """Refuse a VRT that reads anything but raster files, itself or through the VRTs it names."""
    for _ in _files(path, strict=True):
        pass


def vrt_files(path: str) -> list[str]:
    """All files a VRT is made of, through nested ones, as far as they can be told; itself first."""
    return list(dict.fromkeys(_files(path, strict=False)))


def _files(path: str, strict: bool, above: tuple[str, ...] = ()) -> Iterator[str]:
    yield path
    real = os.path.realpath(path)
    if real in above:
        if strict:
            raise _refusal(path, "names itself")
        return
    try:
        root = _parsed(path)
    except UserError:
        if strict:
            raise
        return
    if strict:
        _check_kinds(path, root)
    for source in _sources(path, root):
        if strict:
            _check_source(path, source)
        if source.lower().endswith(".vrt") and os.path.isfile(source):
            yield from _files(source, strict, (*above, real))
        elif os.path.isfile(source):
            yield source


def _parsed(path: str) -> ElementTree.Element:
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode) or about.st_size > _LARGEST:
            raise UserError(f"{path} is no VRT: it is not a file of text, or larger than {_LARGEST >> 20} MiB")
        with open(path, "rb") as file:
            text = file.read()
        if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
            raise _refusal(path, "declares XML entities")
        return ElementTree.fromstring(text)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError) as error:
        raise UserError(f"{path} is no VRT: {error}") from error


def _check_kinds(path: str, root: ElementTree.Element) -> None:
    for element in root.iter():
        kind = element.get("subClass") or element.get("subclass")
        if kind is not None and kind not in _PLAIN:
            raise _refusal(path, f"holds a {kind}")
        if element.tag == "Group":
            raise _refusal(path, "holds arrays of many dimensions")
        if element.tag == "PixelFunctionLanguage" and (element.text or "").strip().lower() != "c":
            raise _refusal(path, f"holds {element.text} code")
        for text in (element.text, *element.attrib.values()):
            if text and ("/vsi" in text.lower() or "://" in text) and element.tag not in ("SRS", "GeoTransform"):
                raise _refusal(path, f"names {text.strip()[:80]!r}")


def _sources(path: str, root: ElementTree.Element) -> Iterator[str]:
    for element in root.iter():
        if element.tag in _SOURCES and element.text:
            name = element.text.strip()
            relative = element.get("relativeToVRT") == "1" or element.get("relativetoVRT") == "1"
            yield os.path.join(os.path.dirname(path), name) if relative else name


def _check_source(path: str, source: str) -> None:
    if not os.path.exists(source):
        if ":" in source[2:] or source.startswith("<"):
            raise _refusal(path, f"names {source[:80]!r}")
        return  # GDAL will say that it is missing
    if source.lower().endswith(".vrt"):
        return
    if not os.path.isfile(source):
        raise _refusal(path, f"names {source}, which is no file")
    with open(source, "rb") as file:
        start = file.read(16)
    if not start.startswith(_RASTERS):
        raise _refusal(path, f"reads {source}, which is no raster of a common kind")


def _refusal(path: str, what: str) -> UserError:
    return UserError(f"{path} {what}; if you trust it, say --allow-drivers VRT")
