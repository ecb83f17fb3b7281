"""A raster file as the browser asks for it: square tiles, and single pixels."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import shlex
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crispseg.errors import UserError
from crispseg.geo.gdal import bounded_cache, quiet
from crispseg.geo.grid import Grid
from crispseg.geo.lonlat import holds_a_pole, on_earth
from crispseg.geo.reader import grid_of, open_raster
from crispseg.view.space import HIGHEST, PIXEL, TILE, Box, tile_box, to_degrees, to_metres, zoom_for

_STEPS = 17  # places along a grid, between which longitudes are compared
_RIM = 0.01  # of its width and height: maps of the whole world often reach a little beyond it
_LARGE = 8192  # px: a larger file without overviews is slow to look at
Pixels = tuple[NDArray[Any], NDArray[np.bool_]]  # (bands, h, w) and where there is data, (h, w)
Resampling = Literal["nearest", "bilinear"]


class Raster:
    """A file that is shown. Threads read through handles of their own; a file that changes is opened anew.

    `beside` is the map that the scene is about: where it has no reference system all is shown pixel by pixel, and a
    file that has none itself but the map's size lies where the map lies. A reference system of a site of its own, which
    no longitudes belong to, counts as none, and so does that of a map at a pole, which Web Mercator does not show.

    `turn` is the longitude in the middle of the page's world: that opposite to Greenwich for a map across the date line
    or beyond it. All longitudes here are the page's, counted from there.
    """

    def __init__(self, path: str, beside: Raster | None = None) -> None:
        self.path = path
        self._idle: list[Any] = []
        self._taking = threading.Lock()
        with open_raster(path) as dataset:
            own = grid_of(dataset)
            self.bands, self.dtype = dataset.count, dataset.dtypes[0]
            self.has_overviews = bool(dataset.overviews(1))
            placed_by_points = bool(dataset.gcps[0])
        self._stamp = self._look()
        if not own.crs and placed_by_points:
            raise UserError(
                f"{path} is placed by control points alone; make a map of it first: "
                f"gdalwarp {shlex.quote(path)} out.tif"
            )
        if own.crs and not _in_mercator(own):
            own = dataclasses.replace(own, crs="")
        self._lies_like = None if beside is None else _place(path, own, beside)
        self.grid = self._lies_like or own
        self.turn: int = 0 if self.in_pixels else turn_for(self.grid) if beside is None else beside.turn
        if beside is not None and not self.box.overlaps(beside.box):
            raise UserError(f"{path} lies elsewhere than {beside.path}: they have no ground in common")

    @property
    def in_pixels(self) -> bool:
        """Whether it is shown pixel by pixel, for want of a reference system."""
        return not self.grid.crs

    @property
    def version(self) -> str:
        """Changes with the file; raises where it is gone."""
        return f"{hash(self._look()) & 0xFFFFFFFF:08x}"

    @property
    def notes(self) -> list[str]:
        if self.has_overviews or max(self.grid.height, self.grid.width) <= _LARGE:
            return []
        files = shlex.join([self.path, f"{os.path.splitext(self.path)[0]}_cog.tif"])
        return [f"{self.path} has no overviews and is slow to look at: gdal_translate -of COG {files}"]

    @property
    def corners(self) -> list[tuple[float, float]]:
        """Longitude and latitude of the upper left, upper right, lower right and lower left corner."""
        height, width = self.grid.height, self.grid.width
        return self.to_degrees([(0, 0), (width, 0), (width, height), (0, height)])

    @property
    def box(self) -> Box:
        """In degrees; of a large scene also the middles of its sides are looked at, which may bulge."""
        height, width = self.grid.height, self.grid.width
        steps = [i / 8 for i in range(9)]
        rim = [(share * width, edge) for share in steps for edge in (0.0, height)]
        rim += [(edge, share * height) for share in steps for edge in (0.0, width)]
        longitudes, latitudes = zip(*self.to_degrees(rim), strict=True)
        return Box(min(longitudes), min(latitudes), max(longitudes), max(latitudes))

    @property
    def zoom(self) -> int:
        """The zoom level at which a tile's pixels are no larger than the file's."""
        if self.in_pixels:
            return zoom_for(PIXEL)
        height, width = self.grid.height, self.grid.width
        points = self.to_degrees([(width / 2, height / 2), (width / 2 + 1, height / 2), (width / 2, height / 2 + 1)])
        here, right, below = (to_metres(*point) for point in points)
        return zoom_for(min(max(abs(p[0] - here[0]), abs(p[1] - here[1])) for p in (right, below)))

    def to_degrees(self, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Longitude and latitude of (column, row) places."""
        if self.in_pixels:
            return [to_degrees(x * PIXEL, -y * PIXEL) for x, y in points]
        longitudes, latitudes = _lonlat(self.grid, *np.array(points, float).T)
        return list(zip(turned(longitudes, self.turn).tolist(), latitudes.tolist(), strict=True))

    def place(self, longitude: float, latitude: float) -> tuple[float, float]:
        """(column, row) of a point; NaN where the reference system does not reach."""
        from rasterio._err import CPLE_BaseError
        from rasterio.errors import RasterioError
        from rasterio.warp import transform

        if self.in_pixels:
            x, y = to_metres(longitude, latitude)
            return x / PIXEL, -y / PIXEL
        try:
            xs, ys = transform("EPSG:4326", self.grid.crs, [longitude + self.turn], [latitude])
        except (CPLE_BaseError, RasterioError):
            return math.nan, math.nan
        column, row = self.grid.pixel(xs[0], ys[0])
        return (column, row) if math.isfinite(column) and math.isfinite(row) else (math.nan, math.nan)

    def tile(self, z: int, x: int, y: int, bands: tuple[int, ...], resampling: Resampling = "nearest") -> Pixels:
        with self._reading() as dataset:
            if self.in_pixels:
                return _cut_tile(dataset, z, x, y, bands, resampling)
            from rio_tiler.reader import part

            mercator = _mercator(self.turn)
            image = part(
                dataset,
                tile_box(z, x, y),
                TILE,
                TILE,
                dst_crs=mercator,
                bounds_crs=mercator,
                indexes=bands,
                resampling_method=resampling,
                reproject_method=resampling,
            )
            missing = np.ma.getmaskarray(image.array)
            return image.array.data, ~np.logical_or.reduce(missing, axis=0)

    def pixel(self, longitude: float, latitude: float) -> tuple[NDArray[Any], bool] | None:
        """The values of the pixel under a point, and whether they are data; None beside the raster."""
        column, row = self.place(longitude, latitude)
        if not (0 <= row < self.grid.height and 0 <= column < self.grid.width):
            return None
        row, column = math.floor(row), math.floor(column)
        window = ((row, row + 1), (column, column + 1))
        with self._reading() as dataset:
            return dataset.read(window=window)[:, 0, 0], bool(dataset.read_masks(window=window).all())

    def small(self, bands: tuple[int, ...], side: int = 1024) -> Pixels:
        """The whole of it with at most `side` pixels a side, quickly."""
        scale = max(1.0, max(self.grid.height, self.grid.width) / side)
        shape = (max(1, round(self.grid.height / scale)), max(1, round(self.grid.width / scale)))
        with self._reading() as dataset:
            values = dataset.read(bands, out_shape=(len(bands), *shape))
            has_data = dataset.read_masks(bands, out_shape=(len(bands), *shape)).all(0)
        return values, has_data

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Any]:
        """A handle for this thread; whatever goes wrong is told in one sentence."""
        from rasterio._err import CPLE_BaseError
        from rasterio.errors import RasterioError

        stamp = self._look()
        with self._taking:
            if stamp != self._stamp:
                self._idle.clear()
                self._stamp = stamp
            handle = self._idle.pop() if self._idle else None
        try:
            handle = handle or self._open()
            with bounded_cache():
                yield handle
        except (RasterioError, CPLE_BaseError, OSError) as error:
            reason = " ".join(str(error.__cause__ or error).split()).rstrip(".")
            raise UserError(f"{self.path} cannot be read: {reason}; the file may be damaged or cut short") from error
        with self._taking:
            if stamp == self._stamp:
                self._idle.append(handle)

    def _open(self) -> Any:
        from rasterio.transform import Affine
        from rasterio.vrt import WarpedVRT

        dataset = open_raster(self.path)
        if self._lies_like is None or self.in_pixels:
            return dataset
        grid = self._lies_like
        transform = Affine(*grid.transform)
        with quiet():
            return WarpedVRT(
                dataset,
                src_crs=grid.crs,
                src_transform=transform,
                crs=grid.crs,
                transform=transform,
                width=grid.width,
                height=grid.height,
            )

    def _look(self) -> tuple[int, int] | None:
        """Size and time of the file; None for what is not a file on this machine."""
        if not os.path.exists(self.path) and ("://" in self.path or self.path.startswith("/vsi")):
            return None
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise UserError(f"{self.path} is gone: {error.strerror}; put it back, or end crisp view") from error
        return status.st_size, status.st_mtime_ns


def _in_mercator(grid: Grid) -> bool:
    """Whether the page can show it where it lies."""
    place = grid.ground(grid.width / 2, grid.height / 2)
    if not on_earth(grid.crs, *place) or holds_a_pole(grid):
        return False
    return bool(abs(_lonlat(grid, np.array([grid.width / 2]), np.array([grid.height / 2]))[1][0]) < HIGHEST)


def _lonlat(grid: Grid, columns: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.float64]:
    """(2, n) longitudes and latitudes of places; on a geographic grid the longitudes may go on beyond 180 degrees."""
    from rasterio.warp import transform

    return np.array(transform(grid.crs, "EPSG:4326", *grid.ground(columns, rows)))


def turn_for(grid: Grid) -> int:
    """The longitude in the middle of a world in which the grid is in one piece."""
    shares = np.linspace(_RIM, 1 - _RIM, _STEPS)
    columns, rows = np.meshgrid(shares * grid.width, shares * grid.height)
    longitudes = _lonlat(grid, columns.ravel(), rows.ravel())[0].reshape(columns.shape)
    if longitudes.min() < -180:
        return -180
    crosses = np.abs(np.diff(longitudes, axis=0)).max() > 180 or np.abs(np.diff(longitudes)).max() > 180
    return 180 if longitudes.max() > 180 or crosses else 0


def turned(longitudes: NDArray[np.float64], turn: int) -> NDArray[np.float64]:
    """Counted from the middle of a page's world."""
    if not turn:
        return longitudes
    away = longitudes - turn
    return np.where(np.abs(away) <= 180, away, (away + 180) % 360 - 180)


@functools.cache
def _mercator(turn: int) -> Any:
    """Web Mercator with the date line elsewhere; `over` lets longitudes go on beyond 180 degrees."""
    from rasterio.crs import CRS

    if not turn:
        return CRS.from_epsg(3857)
    return CRS.from_string(
        f"+proj=merc +a=6378137 +b=6378137 +lon_0={turn} +units=m +nadgrids=@null +wktext +no_defs +over"
    )


def _place(path: str, own: Grid, beside: Raster) -> Grid | None:
    """The map's grid for a file that has none; nothing for one that has its own."""
    reference = beside.grid
    if own.crs and reference.crs:
        return None
    if (own.height, own.width) != (reference.height, reference.width):
        size, other = f"{own.width} x {own.height} px", f"{reference.width} x {reference.height} px"
        raise UserError(
            f"{path} is {size} and {beside.path} {other}, and without a reference system in both nothing says how they "
            "lie; give a file of the same size"
        )
    return reference


def _cut_tile(dataset: Any, z: int, x: int, y: int, bands: tuple[int, ...], resampling: str) -> Pixels:
    """A tile of a scene shown pixel by pixel: a window of the file, enlarged or shrunk by a power of two."""
    from rasterio import enums
    from rasterio.windows import Window

    box = tile_box(z, x, y)
    side = (box.east - box.west) / PIXEL  # in the file's pixels
    left, top = round(box.west / PIXEL, 6), round(-box.north / PIXEL, 6)
    values = np.zeros((len(bands), TILE, TILE), dataset.dtypes[bands[0] - 1])
    has_data = np.zeros((TILE, TILE), bool)
    if left >= dataset.width or top >= dataset.height or left + side <= 0 or top + side <= 0:
        return values, has_data
    right, bottom = min(left + side, dataset.width), min(top + side, dataset.height)
    across, down = (max(1, round((end - start) * TILE / side)) for start, end in ((left, right), (top, bottom)))
    options = {
        "window": Window(left, top, right - left, bottom - top),
        "out_shape": (len(bands), down, across),
        "resampling": enums.Resampling[resampling],
    }
    values[:, :down, :across] = dataset.read(bands, **options)
    has_data[:down, :across] = dataset.read_masks(bands, **options).all(0)
    return values, has_data
