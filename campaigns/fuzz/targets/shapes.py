"""Polygons and their styles, rasters of rarer kinds, exported models."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from campaigns.fuzz.targets.base import Target
from campaigns.fuzz.targets.models import small_model
from campaigns.fuzz.targets.pictures import write
from campaigns.fuzz.targets.scenes import read_scene

_UTM: dict[str, Any] = {"crs": "EPSG:32633", "transform": (0.5, 0, 4e5, 0, -0.5, 5e6)}


def targets() -> list[Target]:
    found = [
        Target("polygons to view", _polygons, ("p.gpkg", "p.geojson", "p.fgb"), _view, share=2),
        Target("styled labels", _polygons, ("p.gpkg", "p.qml"), _labels, share=2),
        Target("scene s.gpkg", _package, ("s.gpkg",), lambda folder: read_scene(folder / "s.gpkg"), share=1),
        Target("beside a scene", _neighbours, _BESIDE, lambda folder: read_scene(folder / "s.tif"), share=2),
    ]
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        return found
    return [*found, Target("exported model", _export, ("m.onnx",), _load_onnx, share=2)]


def _polygons(folder: Path) -> None:
    """A map's own polygons, with their style, in all formats; and the map."""
    from crispseg.geo.vectorize import vectorize_map

    write(folder / "map.tif", "uint8", 1, 24, nodata=255, **_UTM)
    for ending in ("gpkg", "geojson", "fgb"):
        vectorize_map(str(folder / "map.tif"), str(folder / f"p.{ending}"), existing="replace")
    (folder / "p.qml").write_text(_QML)


_QML = """<qgis version="3.34"><renderer-v2 attr="class" type="categorizedSymbol"><categories>
<category symbol="0" value="class 0" label="zero"/><category symbol="1" value="class 1" label="one"/></categories>
<symbols><symbol name="0" type="fill"><layer class="SimpleFill"><Option type="Map"><Option name="color" type="QString"
value="10,20,30,255"/></Option></layer></symbol><symbol name="1" type="fill"><layer class="SimpleFill">
<prop k="color" v="1,2,3,255"/></layer></symbol></symbols></renderer-v2></qgis>
"""


def _view(folder: Path) -> None:
    from crispseg.view.features import Features
    from crispseg.view.rasters import Raster
    from crispseg.view.space import Box

    for ending in ("gpkg", "geojson", "fgb"):
        Features(str(folder / f"p.{ending}"), Raster(str(folder / "map.tif"))).inside(Box(-180, -85, 180, 85), 12)


def _labels(folder: Path) -> None:
    from crispseg.geo.labels.colours import class_table
    from crispseg.geo.labels.layers import LabelLayer

    class_table(LabelLayer(str(folder / "p.gpkg"), field="class"), "", "")


def _package(folder: Path) -> None:
    write(folder / "s.gpkg", "uint8", 3, 40, driver="GPKG", **_UTM)


_BESIDE = ("s.tfw", "s.prj", "s.tif.aux.xml", "s.tif.msk")


def _neighbours(folder: Path) -> None:
    """Files that GDAL takes into account when it opens another."""
    write(folder / "s.tif", "uint8", 3, 40)
    (folder / "s.tfw").write_text("0.5\n0\n0\n-0.5\n400000\n5000000\n")
    (folder / "s.prj").write_text("EPSG:32633")
    (folder / "s.tif.aux.xml").write_text(
        "<PAMDataset><SRS>EPSG:32633</SRS><PAMRasterBand band='1'><Description>red</Description><NoDataValue>0"
        "</NoDataValue><ColorInterp>Red</ColorInterp></PAMRasterBand></PAMDataset>"
    )
    write(folder / "mask.tif", "uint8", 1, 40)
    (folder / "mask.tif").rename(folder / "s.tif.msk")


@functools.cache
def _exported() -> bytes:
    import tempfile

    from crispseg.export.run import export

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        export(small_model().eval(), path, size=(32, 32), batch=1)
        return path.read_bytes()


def _export(folder: Path) -> None:
    (folder / "m.onnx").write_bytes(_exported())


def _load_onnx(folder: Path) -> None:
    import torch

    from crispseg.errors import UserError
    from crispseg.models.folder import load

    model = load(folder / "m.onnx")
    if model.in_channels != 3:
        raise UserError("another number of bands: the scene's check says so")
    with torch.inference_mode():
        model(torch.zeros(1, 3, 32, 32))
