"""Writes the small and odd rasters of the tests."""

from __future__ import annotations

import warnings

import numpy as np
import rasterio
from rasterio.errors import NotGeoreferencedWarning

UTM = {"crs": "EPSG:32633", "transform": rasterio.Affine(0.5, 0, 400_000, 0, -0.5, 5_000_000)}


def write_raster(path, pixels, *, mask=None, colormap=None, tags=None, descriptions=None, colorinterp=None, **profile):
    """`pixels` is (bands, h, w) or (h, w); the rest is passed to rasterio."""
    pixels = pixels if pixels.ndim == 3 else pixels[None]
    count, height, width = pixels.shape
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with (
            rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True),
            rasterio.open(
                path,
                "w",
                **{
                    "driver": "GTiff",
                    "count": count,
                    "height": height,
                    "width": width,
                    "dtype": pixels.dtype,
                    **profile,
                },
            ) as dataset,
        ):
            dataset.write(pixels)
            if mask is not None:
                dataset.write_mask(mask)
            if colormap is not None:
                dataset.write_colormap(1, colormap)
            if tags:
                dataset.update_tags(**tags)
            if colorinterp is not None:
                dataset.colorinterp = colorinterp
            for band, name in enumerate(descriptions or (), 1):
                dataset.set_band_description(band, name)
    return str(path)


def write_vrt(path, height, width, bands):
    """`bands` are (type, file beside it, band of that file); without a reference system."""
    texts = [
        f'<VRTRasterBand dataType="{dtype}" band="{k}"><SimpleSource><SourceFilename relativeToVRT="1">{file}'
        f"</SourceFilename><SourceBand>{band}</SourceBand></SimpleSource></VRTRasterBand>"
        for k, (dtype, file, band) in enumerate(bands, 1)
    ]
    path.write_text(f'<VRTDataset rasterXSize="{width}" rasterYSize="{height}">{"".join(texts)}</VRTDataset>')
    return str(path)


def read_raster(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path) as dataset:
            return dataset.read()


def random_pixels(bands, height, width, dtype=np.uint8, high=30, seed=0):
    return np.random.default_rng(seed).integers(1, high, (bands, height, width)).astype(dtype)
