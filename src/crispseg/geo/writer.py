"""Maps as Cloud Optimized GeoTIFFs, written row by row: a plain tiled file, its optimised copy, a check.

Every map is uint8 with 255 for no data. Nothing time-dependent goes into the file: the same map has the same bytes.
"""

from __future__ import annotations

import colorsys
import contextlib
import dataclasses
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.files import no_space, says_full
from crispseg.geo.gdal import bounded_cache, quiet
from crispseg.geo.grid import Grid
from crispseg.outputs import Workplace

NODATA = 255
BLOCK = 512
COMPRESSIONS = ("deflate", "zstd", "lzw")


@dataclasses.dataclass(frozen=True)
class MapKind:
    """What a map holds: how it is coloured, described and shrunk."""

    bands: tuple[str, ...]
    overviews: str  # GDAL's resampling of the overviews
    palette: tuple[tuple[int, int, int], ...] = ()
    scale: float = 1.0
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)


class MapWriter:
    """Takes rows from top to bottom; `finish` gives the path of the finished file inside the workplace."""

    def __init__(self, place: Workplace, target: Path, grid: Grid, kind: MapKind, compress: str = "deflate"):
        self.target, self.grid, self.kind, self.compress = target, grid, kind, compress
        self._plain = place.making(f"{target.name}.plain.tif")
        self._optimised = place.making(target.name)
        self._waiting = np.empty((len(kind.bands), BLOCK, grid.width), np.uint8)
        self._waiting_rows = self._written = 0
        self._checksums: list[int] = []
        with explaining_failure(target):
            self._dataset = self._create()

    def write(self, rows: NDArray[np.uint8]) -> None:
        """The next (bands, rows, width) rows."""
        while rows.shape[1]:
            taken = min(rows.shape[1], BLOCK - self._waiting_rows)
            self._waiting[:, self._waiting_rows : self._waiting_rows + taken] = rows[:, :taken]
            self._waiting_rows += taken
            if self._waiting_rows == BLOCK:
                self._write_waiting()
            rows = rows[:, taken:]

    def finish(self) -> Path:
        if self._waiting_rows:
            self._write_waiting()
        assert self._written == self.grid.height, "rows are missing"
        with explaining_failure(self.target):
            self._dataset.close()
            self._optimise()
            self._plain.unlink()
            self._check()
        return self._optimised

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._dataset.close()

    def _create(self) -> Any:
        import rasterio

        grid = self.grid
        with quiet(), bounded_cache():
            dataset = rasterio.open(
                self._plain,
                "w",
                driver="GTiff",
                width=grid.width,
                height=grid.height,
                count=len(self.kind.bands),
                dtype="uint8",
                nodata=NODATA,
                crs=grid.crs or None,
                transform=rasterio.Affine(*grid.transform) if grid.has_transform else None,
                tiled=True,
                blockxsize=BLOCK,
                blockysize=BLOCK,
                compress="ZSTD",
                zstd_level=1,
                interleave="band",
                bigtiff="IF_SAFER",
                photometric="PALETTE" if self.kind.palette else "MINISBLACK",
            )
        for band, name in enumerate(self.kind.bands, 1):
            dataset.set_band_description(band, name)
        if self.kind.palette:
            dataset.write_colormap(1, _colour_table(self.kind.palette))
        if self.kind.scale != 1.0:
            dataset.scales = [self.kind.scale] * len(self.kind.bands)
        dataset.update_tags(**self.kind.tags, AREA_OR_POINT="Point" if grid.is_point else "Area")
        return dataset

    def _write_waiting(self) -> None:
        """One row of the file's blocks."""
        rows = self._waiting[:, : self._waiting_rows]
        with explaining_failure(self.target), bounded_cache():
            self._dataset.write(rows, window=((self._written, self._written + rows.shape[1]), (0, self.grid.width)))
        self._checksums.append(_checksum(rows))
        self._written += rows.shape[1]
        self._waiting_rows = 0

    def _optimise(self) -> None:
        import rasterio.shutil

        with bounded_cache():
            rasterio.shutil.copy(
                self._plain,
                self._optimised,
                driver="COG",
                compress=self.compress.upper(),
                blocksize=BLOCK,
                overview_resampling=self.kind.overviews,
                bigtiff="IF_SAFER",
                num_threads="ALL_CPUS",
            )

    def _check(self) -> None:
        """Read the file back: GDAL does not report every failed write."""
        import rasterio

        with quiet():
            dataset = rasterio.open(self._optimised)
        with bounded_cache(), dataset:
            for k, checksum in enumerate(self._checksums):
                rows = (k * BLOCK, min((k + 1) * BLOCK, self.grid.height))
                if _checksum(dataset.read(window=(rows, (0, self.grid.width)))) != checksum:
                    raise OSError("what was written cannot be read back")


def _checksum(rows: NDArray[np.uint8]) -> int:
    value = 0
    for band in rows:
        for row in band:
            value = zlib.crc32(row, value)
    return value


def spare_hues(count: int) -> tuple[tuple[int, int, int], ...]:
    """Well-separated colours for classes whose names are not known, or say nothing."""
    golden = 0.618034
    hues = [colorsys.hsv_to_rgb(k * golden % 1.0, 0.65, 0.9) for k in range(count)]
    return tuple((round(r * 255), round(g * 255), round(b * 255)) for r, g, b in hues)


def _colour_table(palette: tuple[tuple[int, int, int], ...]) -> dict[int, tuple[int, int, int, int]]:
    table = {k: (*colour, 255) for k, colour in enumerate(palette)}
    return {**table, NODATA: (0, 0, 0, 0)}


@contextlib.contextmanager
def explaining_failure(target: Path, *also: type[Exception]) -> Iterator[None]:
    """Turn a failed write into one sentence."""
    from rasterio._err import CPLE_BaseError
    from rasterio.errors import RasterioError

    try:
        yield
    except (RasterioError, CPLE_BaseError, OSError, *also) as error:
        if says_full(error):
            raise no_space(target) from error
        reason = " ".join(str(error.__cause__ or error).split()).rstrip(".")
        free = shutil.disk_usage(_existing_parent(target)).free / 2**20
        raise UserError(
            f"cannot write {target}: {reason} ({free:.0f} MiB are free there); make room or choose another place"
        ) from error


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in path.absolute().parents if os.path.isdir(parent))
