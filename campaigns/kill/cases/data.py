"""`crisp prepare`, of a known data set and of drawn polygons."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.fakedata import fake_loveda
from tests.geo.rasters import UTM, random_pixels, write_raster

from campaigns.kill.cases.base import Content, Files, files_in


class Prepare(Files):
    name, weight, needs = "prepare", 14, ("crispseg.data.prepare",)

    def make(self, folder: Path) -> None:
        fake_loveda(folder / "in")

    def change(self, folder: Path) -> None:
        label = sorted((folder / "in" / "Train" / "Urban" / "masks_png").iterdir())[0]
        others = sorted((folder / "in" / "Train" / "Rural" / "masks_png").iterdir())[0]
        shutil.copy(others, label)

    def run(self, folder: Path, existing: str) -> None:
        from crispseg.data.prepare import check, make_plan, prepare

        plan = make_plan("loveda", folder / "in")
        check(plan)
        prepare(plan, folder / "out")

    def content(self, folder: Path) -> Content:
        found = files_in(folder / "out")
        if "dataset.json" in found:  # the signatures name times of the sources
            manifest = json.loads(found["dataset.json"])
            for entry in manifest["images"]:
                entry.pop("signature")
            found["dataset.json"] = manifest
        return found

    def is_finished(self, folder: Path) -> bool:
        return (folder / "out" / "dataset.json").exists() and not (folder / "out" / ".prepare.jsonl").exists()


class Vector(Files):
    """Chips of drawn polygons; the folder is there as a whole or not at all."""

    name, weight = "vector", 12
    needs = ("crispseg.geo.labels.vector", "pyogrio.raw", "shapely", "rasterio.features", "rasterio.warp")

    def make(self, folder: Path) -> None:
        self._write(folder, 5.0)

    def change(self, folder: Path) -> None:
        self._write(folder, 9.0)

    def _write(self, folder: Path, side: float) -> None:
        (folder / "in").mkdir(parents=True, exist_ok=True)
        ortho = folder / "in" / "ortho.tif"
        if not ortho.exists():
            write_raster(ortho, random_pixels(3, 96, 96), **UTM)
        left, top = UTM["transform"] @ (2.0, 2.0)
        features = []
        for k in range(2):
            ring = [[left + side * x + 16 * k, top - side * y] for x, y in _RING]
            shape = {"type": "Polygon", "coordinates": [ring]}
            features.append({"type": "Feature", "properties": {"class": f"c{k}"}, "geometry": shape})
        drawn = {"type": "FeatureCollection", "features": features}
        (folder / "in" / "drawn.geojson").write_text(json.dumps(drawn))

    def run(self, folder: Path, existing: str) -> None:
        from crispseg.geo.labels.vector import VectorChoice, prepare_vector

        inputs = folder / "in"
        choice = VectorChoice(str(inputs / "drawn.geojson"), "class", labels_crs=UTM["crs"], chip=32)
        prepare_vector([str(inputs / "ortho.tif")], choice, str(folder / "out"), existing=existing)

    def content(self, folder: Path) -> Content:
        found = files_in(folder / "out")
        if "dataset.json" in found:  # it names the places of its sources
            found["dataset.json"] = found["dataset.json"].replace(str(folder).encode(), b"")
        return found

    def is_finished(self, folder: Path) -> bool:
        return (folder / "out" / "dataset.json").exists()


_RING = ((0, 0), (0, 1), (1, 1), (1, 0), (0, 0))
