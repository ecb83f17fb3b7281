"""What makes maps: `crisp predict` by every engine and to every place, and `crisp vectorize`."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from tests.geo.rasters import UTM, random_pixels, write_raster
from tests.geo.servers import keys_in, read_object, s3_server
from tests.predict.standins import StandIn

from campaigns.kill.cases.base import Content, Files
from campaigns.kill.cases.exports import small_model
from crispseg.errors import UserError

_NEEDS = (
    *("crispseg.predict.batch", "crispseg.predict.engines.exact", "crispseg.geo.vectorize", "crispseg.geo.polygons"),
    *("rasterio.features", "rasterio.warp", "rasterio.shutil", "shapely", "pyogrio.raw", "sqlite3", "scipy.ndimage"),
)


class Predict(Files):
    """All maps and polygons of a scene: tile by tile here, as one image, or over Ray."""

    needs: tuple[str, ...] = _NEEDS

    def __init__(self, name: str, weight: int) -> None:
        self.name, self.weight = name, weight

    def make(self, folder: Path) -> None:
        (folder / "in").mkdir(parents=True, exist_ok=True)
        write_raster(folder / "in" / "scene.tif", random_pixels(3, 260, 180), **UTM)

    def change(self, folder: Path) -> None:
        write_raster(folder / "in" / "scene.tif", random_pixels(3, 260, 180, seed=1), **UTM)

    def run(self, folder: Path, existing: str) -> None:
        self.predict(folder, existing, str(folder / "out" / "map.tif"))

    def predict(self, folder: Path, existing: str, output: str) -> None:
        from crispseg.geo.maps import MapChoice
        from crispseg.geo.polygons import PolygonChoice
        from crispseg.predict.bands import Pace
        from crispseg.predict.batch import predict_scenes
        from crispseg.predict.scene import Request
        from crispseg.predict.work import Settings

        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # Ray's workers find our model by it
        exact = self.name == "exact"
        request = Request(
            Settings(64, 16, exact=exact, device="cpu"),
            maps=MapChoice(True, not exact, True),
            polygons=PolygonChoice("gpkg"),
            pace=Pace(2, 2),
        )
        report = predict_scenes(
            [str(folder / "in" / "scene.tif")],
            output,
            small_model() if exact else _slow_model(),
            request,
            engine="ray" if self.name == "ray" else "local",
            existing=existing,
            scratch=str(folder / "scratch"),
        )
        for _, reason in report.failures:
            raise (RuntimeError if reason.startswith("unexpected") else UserError)(reason)

    def is_finished(self, folder: Path) -> bool:
        from crispseg.predict.scene import is_waiting

        target = folder / "out" / "map.tif"
        return target.exists() and not is_waiting(target)


def _slow_model() -> StandIn:
    """So slow that it can be caught between tiles."""
    model = StandIn(reach=4)
    model.before = _pause
    return model


def _pause(x: torch.Tensor) -> None:
    time.sleep(0.005)


class Remote(Predict):
    """Into an S3 server on this machine; what is unfinished lies in a scratch folder."""

    environment: dict[str, str] | None = None

    def __init__(self) -> None:
        super().__init__("remote", 10)
        self.server = contextlib.ExitStack()
        atexit.register(self.server.close)

    def make(self, folder: Path) -> None:
        super().make(folder)
        if self.environment is None:  # started by the parent
            self.environment = self.server.enter_context(s3_server())
            os.environ.update(self.environment)

    def run(self, folder: Path, existing: str) -> None:
        self.predict(folder, existing, f"s3://bucket/{folder.name}/map.tif")

    def content(self, folder: Path) -> Content:
        """Asked of the server without GDAL; and nothing may stay here."""
        assert self.environment is not None
        keys = keys_in(self.environment, prefix=f"{folder.name}/")
        found: Content = {key.partition("/")[2]: read_object(self.environment, key) for key in keys}
        return {**found, "scratch": sorted(path.name for path in self._scratch(folder))}

    def is_finished(self, folder: Path) -> bool:
        return "map.tif" in self.content(folder) and not self._scratch(folder)

    def has_begun(self, folder: Path) -> bool:
        return (folder / "scratch").exists()

    def _scratch(self, folder: Path) -> list[Path]:
        """What waits there; an empty lock is what a run leaves that is killed when all is done."""
        return [path for path in (folder / "scratch").rglob("*") if path.is_file() and path.name != "lock"]


class Vectorize(Files):
    name, weight, needs = "vectorize", 14, _NEEDS

    def make(self, folder: Path) -> None:
        self._write(folder, 0)

    def change(self, folder: Path) -> None:
        self._write(folder, 1)

    def _write(self, folder: Path, seed: int) -> None:
        (folder / "in").mkdir(parents=True, exist_ok=True)
        classes = np.random.default_rng(seed).integers(0, 3, (120, 80)).astype(np.uint8)
        write_raster(folder / "in" / "map.tif", classes.repeat(2, axis=0).repeat(2, axis=1), nodata=255, **UTM)

    def run(self, folder: Path, existing: str) -> None:
        from crispseg.geo.vectorize import vectorize_map

        target = folder / "out" / "map.gpkg"
        vectorize_map(str(folder / "in" / "map.tif"), str(target), min_area=1.0, existing=existing)

    def is_finished(self, folder: Path) -> bool:
        return (folder / "out" / "map.gpkg").exists()
