"""What OGR says while it writes and pyogrio does not pass on: a write that failed may leave a file that only looks
whole."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

_FAILURE = 3  # and what is worse
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, ctypes.c_char_p)


@contextlib.contextmanager
def heeding_failures() -> Iterator[None]:
    """Raise pyogrio's DataSourceError when the block went well but OGR told of a failure."""
    from pyogrio.errors import DataSourceError

    failures: list[str] = []

    def note(kind: int, number: int, text: bytes) -> None:
        if kind >= _FAILURE:
            failures.append(text.decode("utf-8", "replace"))

    handler = _Handler(note)  # must live as long as it may be called
    gdal = _gdal()
    gdal.CPLPushErrorHandler(handler)
    try:
        yield
    finally:
        gdal.CPLPopErrorHandler()
    if failures:
        raise DataSourceError(" ".join(failures[0].split())[-200:])


@functools.cache
def _gdal() -> Any:
    """The C functions of pyogrio's GDAL, which is another one than rasterio's."""
    import pyogrio._io

    library = ctypes.CDLL(pyogrio._io.__file__)
    library.CPLPushErrorHandler.restype, library.CPLPushErrorHandler.argtypes = None, [_Handler]
    library.CPLPopErrorHandler.restype, library.CPLPopErrorHandler.argtypes = None, []
    return library
