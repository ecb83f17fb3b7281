"""Small images of every kind, to be damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def pixels(dtype: str, bands: int, side: int = 24) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(1).integers(0, 3, (side, side, bands)).astype(dtype)
    return values[..., 0] if bands == 1 else values


def save(path: Path, dtype: str, bands: int) -> None:
    Image.fromarray(pixels(dtype, bands)).save(path)


COLOURS = ((0, 0, 0), (90, 90, 90), (200, 10, 10))


def save_palette(path: Path) -> None:
    picture = Image.fromarray(pixels("uint8", 1))
    picture.putpalette([value for colour in COLOURS for value in colour])
    picture.save(path)


def save_colours(path: Path) -> None:
    Image.fromarray(np.array(COLOURS, np.uint8)[pixels("uint8", 1)]).save(path)


def write(path: Path, dtype: str, bands: int, side: int = 24, **profile: Any) -> None:
    """A raster by GDAL; `profile` goes to rasterio."""
    from tests.geo.rasters import write_raster

    values = pixels(dtype, bands, side)
    write_raster(path, np.moveaxis(values, -1, 0) if values.ndim == 3 else values, **profile)
