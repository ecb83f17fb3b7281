"""How we use GDAL: with a bounded cache, and without alarms about images that have no georeference."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator

_CACHE_BYTES = 192 * 2**20  # GDAL's default, a twentieth of the memory, is too much beside a model
_one_at_a_time = threading.Lock()  # Python's warning filters are shared by all threads


@contextlib.contextmanager
def bounded_cache(at_least: int = 0) -> Iterator[None]:
    """GDAL's cache of blocks, shared by all threads, holds no more than it must; `at_least` is in bytes."""
    import rasterio

    with rasterio.Env(GDAL_CACHEMAX=max(_CACHE_BYTES, at_least)):
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """For the short moment of opening a file."""
    from rasterio.errors import NotGeoreferencedWarning

    with _one_at_a_time, warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield
