"""Which of GDAL's drivers may read which file.

GDAL looks into a file and takes whatever driver recognises it, whatever its name: text in `photo.tif` can make it
fetch web pages or read any file of the disk as pixels. So a file is read by the drivers of its ending only, and those
here are the ones that read nothing but the file and what lies beside it under its name. More are allowed by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from crispseg.errors import UserError
from crispseg.geo.vrt import check_vrt
from crispseg.reading import reason

ALL = "all"  # of GDAL's drivers, by content, as GDAL does by itself
BY_ENDING: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((".tif", ".tiff", ".gtiff", ".btf"), ("GTiff",)),
    ".vrt": ("VRT",),
    ".png": ("PNG",),
    **dict.fromkeys((".jpg", ".jpeg"), ("JPEG",)),
    **dict.fromkeys((".jp2", ".j2k", ".jpx"), ("JP2OpenJPEG",)),
    ".img": ("HFA", "ENVI"),
    ".bmp": ("BMP",),
    ".gif": ("GIF",),
    ".webp": ("WEBP",),
    ".gpkg": ("GPKG",),
    ".asc": ("AAIGrid",),
    ".hgt": ("SRTMHGT",),
    ".dem": ("USGSDEM",),
    ".pix": ("PCIDSK",),
    **dict.fromkeys((".ntf", ".nitf"), ("NITF",)),
    **dict.fromkeys((".pgm", ".ppm", ".pnm"), ("PNM",)),
    **dict.fromkeys((".bil", ".bip", ".bsq"), ("EHdr", "ENVI")),
    ".dat": ("ENVI",),
}
_ANY_ENDING = ("GTiff", "PNG", "JPEG", "JP2OpenJPEG", "HFA", "BMP", "WEBP", "GPKG")  # told apart by their first bytes
_ASKED_FOR = {".nc": "netCDF", ".h5": "HDF5", ".hdf5": "HDF5", ".zarr": "Zarr", ".xml": "WMS", ".mrf": "MRF"}
_PREFIXES = {"GPKG": "GPKG", "GTIFF_DIR": "GTiff", "NETCDF": "netCDF", "HDF5": "HDF5Image"}  # of parts of a file
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_name(path: str) -> bool:
    """Whether GDAL or rasterio resolves it: URLs, virtual file systems, parts of files, the text of a VRT."""
    return ":" in path[2:] or path.startswith(("/vsi", "<"))


def open_allowed(path: str, allowed: Sequence[str] = ()) -> Any:
    """A rasterio dataset, by the drivers of the file's ending and those that are `allowed` beside them.

    Raises rasterio's error where none of them reads the file.
    """
    import rasterio
    from rasterio.errors import RasterioIOError

    if ALL in allowed:
        return rasterio.open(path)
    if not is_name(path):
        _check_neighbours(path)
        if path.lower().endswith(".vrt") and "VRT" not in allowed:
            check_vrt(path)
    drivers = [*drivers_for(path, allowed), *allowed]
    if not drivers:
        needed = _ASKED_FOR[os.path.splitext(path)[1].lower()]
        _refuse(path, needed)
    first: RasterioIOError | None = None
    for driver in drivers:
        try:
            dataset = rasterio.open(path, driver=driver)
        except RasterioIOError as error:
            first = first or error
        except UnicodeDecodeError as error:  # what GDAL says of the damage holds bytes of it
            first = first or RasterioIOError(reason(error))
        else:
            return _checked(dataset, path)
    said = str(first).rstrip(".")
    raise RasterioIOError(f"not {' or '.join(drivers)}: {said}; other drivers need --allow-drivers NAME") from first


def drivers_for(path: str, allowed: Sequence[str] = ()) -> tuple[str, ...]:
    """Those that may read a file of this name, beside the allowed ones."""
    prefix = re.match(r"([A-Za-z0-9_]{2,}):(?!//)", path)
    if prefix and not os.path.exists(path):
        driver = _PREFIXES.get(prefix[1].upper(), prefix[1])
        if driver not in _ANY_ENDING and not allowed:
            _refuse(path, driver)
        return (driver,) if driver in _ANY_ENDING else ()
    if path.startswith("<"):
        if not allowed:
            _refuse("the text of a data set", "VRT")
        return ()
    ending = os.path.splitext(path.split("?")[0])[1].lower()
    return () if ending in _ASKED_FOR else BY_ENDING.get(ending, _ANY_ENDING)


def _refuse(what: str, driver: str) -> NoReturn:
    raise UserError(f"{what} is read by GDAL's driver {driver}, which must be allowed: --allow-drivers {driver}")


def _check_neighbours(path: str) -> None:
    """GDAL takes masks and overviews from files beside it, again with any driver: they must be TIFFs."""
    for ending in (".msk", ".ovr", ".MSK", ".OVR"):
        beside = path + ending
        if os.path.isfile(beside):
            with open(beside, "rb") as file:
                start = file.read(4)
            if start not in _TIFF and start != b"EHFA":
                raise UserError(f"{beside} beside {path} is no TIFF; remove it, or trust it with --allow-drivers {ALL}")


def _checked(dataset: Any, path: str) -> Any:
    if "OVERVIEW_FILE" in dataset.tags(ns="OVERVIEWS"):
        dataset.close()
        raise UserError(f"{path} names another file for its overviews; remove that, or trust it: --allow-drivers {ALL}")
    return dataset
