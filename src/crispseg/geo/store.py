"""Files that lie elsewhere: s3://, gs://, az:// and https://, through GDAL's virtual file systems.

Rasters are read by GDAL itself once their name is translated (`gdal_name`). For everything else (is it there, read it,
put it there) rasterio has no words, so GDAL's C functions are called in the library that rasterio has loaded: one set
of credentials and settings serves both. An object appears whole or not at all, when its upload is complete.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import email.utils
import functools
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crispseg.errors import UserError

_SYSTEMS = {"s3": "/vsis3/", "gs": "/vsigs/", "az": "/vsiaz/"}
_WEB = ("https", "http")
_PIECE = 8 << 20  # bytes read or written at a time
# What reading over a network needs; whoever has set one of these knows better.
_SETTINGS = {
    "GDAL_HTTP_MAX_RETRY": "5",
    "GDAL_HTTP_RETRY_DELAY": "0.5",  # seconds, doubled every time
    "GDAL_HTTP_CONNECTTIMEOUT": "20",
    "GDAL_HTTP_LOW_SPEED_TIME": "60",  # a connection that has stopped is given up after so many seconds
    "GDAL_HTTP_LOW_SPEED_LIMIT": "1",  # bytes per second
    "GDAL_HTTP_MERGE_CONSECUTIVE_RANGES": "YES",
    "GDAL_INGESTED_BYTES_AT_OPEN": "32768",  # the header of most optimised files in one request
    "CPL_VSIL_CURL_CACHE_SIZE": str(128 << 20),
    "VSIS3_CHUNK_SIZE": "16",  # MiB of an upload that are held in memory
    "VSIAZ_CHUNK_SIZE": "16",
    "VSIGS_CHUNK_SIZE": "16",
}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile in ~/.aws, or AWS_NO_SIGN_REQUEST=YES",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, GS_OAUTH2_REFRESH_TOKEN, or GS_NO_SIGN_REQUEST=YES",
    "az": "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT with its key or token",
}
# What servers say of an object that is not there (not of its bucket, nor of an access key), and of missing rights.
_ABSENT = re.compile(r"code ?: 404\b|NoSuchKey|specified (key|blob) does not exist|not found", re.IGNORECASE)
_NOT_ALLOWED = re.compile(r"credential|access ?denied|access key|signature|: 40[13]\b", re.IGNORECASE)
_NO_RANGES = "Range downloading not supported"


def scheme_of(name: str) -> str:
    """s3, gs, az, https or http; empty for what lies on this machine's disks, or has GDAL's own name."""
    scheme, separator, rest = name.partition("://")
    known = separator and rest and scheme.lower() in (*_SYSTEMS, *_WEB)
    return scheme.lower() if known else ""


def is_remote(name: str) -> bool:
    return bool(scheme_of(name))


def gdal_name(name: str) -> str:
    """The name by which GDAL finds it; what is not remote stays as it is."""
    scheme = scheme_of(name)
    if not scheme:
        return name
    prepare_network()
    rest = name.partition("://")[2]
    return f"/vsicurl/{scheme}://{rest}" if scheme in _WEB else _SYSTEMS[scheme] + rest


@functools.cache
def prepare_network() -> None:
    """Tell GDAL once how to read over a network: without listing folders, with retries and a cache."""
    gdal = _gdal()
    for key, value in _SETTINGS.items():
        if gdal.CPLGetConfigOption(key.encode(), None) is None:
            gdal.CPLSetConfigOption(key.encode(), value.encode())
    if gdal.CPLGetConfigOption(b"GDAL_DISABLE_READDIR_ON_OPEN", None) is None:
        for prefix in (*_SYSTEMS.values(), "/vsicurl/"):
            # nothing beside the file is looked for: a mask or overview of that name could be text that reads others
            gdal.VSISetPathSpecificOption(prefix.encode(), b"GDAL_DISABLE_READDIR_ON_OPEN", b"EMPTY_DIR")


def exists(name: str) -> bool:
    reason = _refused(name)
    if reason is None:
        return True
    if not reason or _ABSENT.search(reason):
        return False
    raise _refusal(name, "looked at", reason)


def check_readable(name: str) -> None:
    """Refuse an object of which the server gives not even the first byte."""
    with _opened(name, "rb") as handle:
        if handle and _gdal().VSIFReadL(ctypes.create_string_buffer(1), 1, 1, handle):
            return
        reason = _reason()
    if reason:
        raise _refusal(name, "read", reason)


def size_of(name: str) -> int:
    with _opened(name, "rb") as handle:
        if not handle:
            raise _refusal(name, "read", _reason())
        _gdal().VSIFSeekL(handle, 0, os.SEEK_END)
        return int(_gdal().VSIFTellL(handle))


def fingerprint(name: str) -> str:
    """What changes when the object does: its size, and its tag or date where the server tells one."""
    told = _headers(name)
    return f"{size_of(name)} {told.get('etag') or told.get('last-modified') or ''}".strip()


def written_at(name: str) -> datetime.datetime | None:
    """When the object was written, where the server tells it."""
    told = _headers(name).get("last-modified")
    try:
        return email.utils.parsedate_to_datetime(told) if told else None
    except ValueError:
        return None


def _headers(name: str) -> dict[str, str]:
    """What the server says of an object, by names in small letters."""
    with _quiet() as gdal:
        headers = gdal.VSIGetFileMetadata(gdal_name(name).encode(), b"HEADERS", None)
        told = _strings(headers)
        gdal.CSLDestroy(headers)
    return {key.lower(): value.strip() for key, _, value in (line.partition("=") for line in told)}


def read_bytes(name: str, limit: int) -> bytes:
    """All of a small file."""
    size = size_of(name)
    if size > limit:
        raise UserError(f"{name} has {size / 2**20:.0f} MiB, more than is read of such a file ({limit >> 20} MiB)")
    buffer = ctypes.create_string_buffer(size)
    with _opened(name, "rb") as handle:
        if not handle or _gdal().VSIFReadL(buffer, 1, size, handle) != size:
            raise _refusal(name, "read", _reason())
    return buffer.raw


def digest(name: str) -> str:
    """The sha256 of its content."""
    total, buffer = hashlib.sha256(), ctypes.create_string_buffer(_PIECE)
    with _opened(name, "rb") as handle:
        if not handle:
            raise _refusal(name, "read", _reason())
        while count := _gdal().VSIFReadL(buffer, 1, _PIECE, handle):
            total.update(memoryview(buffer)[:count])
    return total.hexdigest()


def put(path: Path, name: str) -> None:
    """Upload a file under its name; it appears when all of it is there."""
    refuse_web(name)
    with path.open("rb") as file:
        _write(name, iter(lambda: file.read(_PIECE), b""))
    if size_of(name) != path.stat().st_size:
        raise UserError(
            f"{name} is not as long as what was put there; something else writes to it, or it was cut short"
        )


def remove(name: str) -> None:
    with _quiet() as gdal:
        gdal.VSIUnlink(gdal_name(name).encode())


def check_writable(folder: str) -> None:
    """Put a small object into `folder` and take it away again, so that missing rights are told before the work."""
    refuse_web(folder)
    probe = f"{folder}/.crisp-{secrets.token_hex(4)}"
    _write(probe, iter([b"crispseg looks whether it may write here\n"]), told_as=folder)
    remove(probe)


def list_folder(name: str) -> list[str]:
    """The full names of the objects right below a folder, in order."""
    if scheme_of(name) in _WEB:
        raise UserError(f"{name} cannot be listed, as no folder of a web server can; name files, or a STAC catalogue")
    folder = name.rstrip("/")
    with _quiet() as gdal:
        names = gdal.VSIReadDir(gdal_name(folder).encode())
        found, reason = _strings(names), _reason()
        gdal.CSLDestroy(names)
    if not found:
        raise _refusal(name, "listed", _root_of(reason, f"{folder}/.crisp"))
    return [f"{folder}/{inside}" for inside in sorted(found)]


def refuse_web(name: str) -> None:
    if scheme_of(name) in _WEB:
        raise UserError(f"{name} can be read but not written: outputs go to a folder, s3://, gs:// or az://")


def _write(name: str, pieces: Iterator[bytes], told_as: str = "") -> None:
    with _quiet() as gdal:
        handle = gdal.VSIFOpenExL(gdal_name(name).encode(), b"wb", 1)
        if not handle:
            raise _refusal(told_as or name, "written", _root_of(_reason(), name))
        complete = all(gdal.VSIFWriteL(piece, 1, len(piece), handle) == len(piece) for piece in pieces)
        closed = gdal.VSIFCloseL(handle) == 0  # the object appears here
        reason = _reason()
        _forget(name)  # GDAL remembers that it was not there
    if not (complete and closed):
        raise _refusal(told_as or name, "written", _root_of(reason, name))


def _refused(name: str) -> str | None:
    """Why the server, asked anew, gives no such object, perhaps without a word; None where it does."""
    _forget(name)
    with _opened(name, "rb") as handle:
        return None if handle else _reason()


def _forget(name: str) -> None:
    """GDAL remembers what a server said, and that it could not be reached as if nothing were there."""
    _gdal().VSICurlPartialClearCache(gdal_name(name).encode())


def _root_of(reason: str, name: str) -> str:
    """Of writing and listing GDAL tells only that it failed; asked for an object there, the server says more."""
    said = _refused(name)
    return said if said and not _ABSENT.search(said) else reason


@contextlib.contextmanager
def _opened(name: str, mode: str) -> Iterator[Any]:
    with _quiet() as gdal:
        handle = gdal.VSIFOpenExL(gdal_name(name).encode(), mode.encode(), 1)
        try:
            yield handle
        finally:
            if handle:
                gdal.VSIFCloseL(handle)


@contextlib.contextmanager
def _quiet() -> Iterator[Any]:
    """GDAL prints its errors unless told otherwise; they come back to us by `_reason`."""
    gdal = _gdal()
    gdal.CPLPushErrorHandler(ctypes.cast(gdal.CPLQuietErrorHandler, ctypes.c_void_p))
    gdal.CPLErrorReset()
    gdal.VSIErrorReset()
    try:
        yield gdal
    finally:
        gdal.CPLPopErrorHandler()


def _reason() -> str:
    gdal = _gdal()
    told = gdal.VSIGetLastErrorMsg() or gdal.CPLGetLastErrorMsg() or b""
    return " ".join(told.decode("utf-8", "replace").split()).rstrip(".!")


def _refusal(name: str, what: str, reason: str) -> UserError:
    scheme = scheme_of(name)
    if _NOT_ALLOWED.search(reason):
        hint = f"; credentials are taken from {_CREDENTIALS[scheme]}" if scheme in _CREDENTIALS else ""
    elif _NO_RANGES in reason:
        hint = "; copy the file here"
    else:
        hint = "; check the name and the network"
    return UserError(f"{name} cannot be {what}: {reason or 'there is nothing of that name'}{hint}")


def _strings(pointers: Any) -> list[str]:
    found: list[str] = []
    while pointers and pointers[len(found)]:
        found.append(pointers[len(found)].decode("utf-8", "replace"))
    return found


@functools.cache
def _gdal() -> Any:
    """The C functions of rasterio's GDAL."""
    import rasterio
    import rasterio._env

    text, handle, size = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t
    with rasterio.Env():  # drivers and file systems are registered
        library = ctypes.CDLL(rasterio._env.__file__)
    for name, result, arguments in (
        ("CPLGetConfigOption", text, [text, text]),
        ("CPLSetConfigOption", None, [text, text]),
        ("CPLPushErrorHandler", None, [ctypes.c_void_p]),
        ("CPLPopErrorHandler", None, []),
        ("CPLErrorReset", None, []),
        ("CPLGetLastErrorMsg", text, []),
        ("CSLDestroy", None, [ctypes.POINTER(text)]),
        ("VSIErrorReset", None, []),
        ("VSIGetLastErrorMsg", text, []),
        ("VSISetPathSpecificOption", None, [text, text, text]),
        ("VSIGetFileMetadata", ctypes.POINTER(text), [text, text, ctypes.c_void_p]),
        ("VSICurlPartialClearCache", None, [text]),
        ("VSIFOpenExL", handle, [text, text, ctypes.c_int]),
        ("VSIFCloseL", ctypes.c_int, [handle]),
        ("VSIFSeekL", ctypes.c_int, [handle, ctypes.c_uint64, ctypes.c_int]),
        ("VSIFTellL", ctypes.c_uint64, [handle]),
        ("VSIFReadL", size, [ctypes.c_void_p, size, size, handle]),
        ("VSIFWriteL", size, [ctypes.c_char_p, size, size, handle]),
        ("VSIReadDir", ctypes.POINTER(text), [text]),
        ("VSIUnlink", ctypes.c_int, [text]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
