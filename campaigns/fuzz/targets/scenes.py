"""Scenes, class maps, and the journals of predict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from campaigns.fuzz.targets.base import Target
from campaigns.fuzz.targets.pictures import save_palette, write


def targets() -> list[Target]:
    def scene(name: str, **profile: Any) -> Target:
        def make(folder: Path) -> None:
            write(folder / name, profile.pop("dtype", "uint8"), 3, 40, **profile)

        return Target(f"scene {name}", make, (name,), lambda folder: read_scene(folder / name))

    def make_vrt(folder: Path) -> None:
        write(folder / "inner.tif", "uint8", 3, 40)
        (folder / "s.vrt").write_text(_VRT)

    return [
        scene("s.tif", tiled=True, blockxsize=16, blockysize=16, compress="deflate", crs="EPSG:32633"),
        scene("s.png", driver="PNG"),
        Target("scene s.vrt", make_vrt, ("s.vrt", "inner.tif"), lambda folder: read_scene(folder / "s.vrt"), share=2),
        Target("STAC item", _item, ("item.json",), lambda folder: _read_item(folder / "item.json")),
        Target("report to view", _report, ("places.json",), _read_report, share=2),
        Target("class map", _class_map, ("map.tif",), _vectorize, share=2),
        Target("bands of predict", _stopped_in("_make_files"), _BANDS, _predict, share=2),
        Target("journal of predict", _stopped_in("_put_in_place"), _JOURNAL, _predict, share=2),
    ]


_VRT = "<VRTDataset rasterXSize='40' rasterYSize='40'>" + "".join(
    f"<VRTRasterBand dataType='Byte' band='{band}'><SimpleSource><SourceFilename relativeToVRT='1'>inner.tif"
    f"</SourceFilename><SourceBand>{band}</SourceBand></SimpleSource></VRTRasterBand>"
    for band in (1, 2, 3)
) + "</VRTDataset>"  # fmt: skip


def read_scene(path: Path) -> None:
    """Open it for a model and read some windows, as tiles are read."""
    from tests.predict.standins import StandIn

    from crispseg.geo.scenes import Reading, open_scene
    from crispseg.raster.source import Window, read_reflected

    scene = open_scene(str(path), StandIn(), Reading())
    try:
        for top in (0, max(0, scene.source.height - 20)):
            read_reflected(scene.source, Window(top, 0, 32, 32))
    finally:
        scene.source.close()


def _item(folder: Path) -> None:
    """An item beside the scene it names."""
    write(folder / "s.tif", "uint8", 3, 40)
    item = {
        "type": "Feature", "stac_version": "1.0.0", "id": "one", "geometry": None, "links": [], "stac_extensions": [],
        "properties": {"datetime": "2024-05-01T10:00:00Z", "gsd": 0.5, "platform": "x"},
        "assets": {"data": {"href": "./s.tif", "type": "image/tiff; application=geotiff", "roles": ["data"]}},
    }  # fmt: skip
    (folder / "item.json").write_text(json.dumps(item))


def _read_item(path: Path) -> None:
    from crispseg.geo.stac.read import read_catalogue

    for scene in read_catalogue(str(path)):
        if Path(scene.path).parent == path.parent:  # what else it names is the command's to open
            read_scene(Path(scene.path))


def _report(folder: Path) -> None:
    image = {"name": "a", "file": str(folder / "a.png"), "map": "maps/01.png", "truth": "maps/01-truth.png"}
    place = {"place": 0, "image": "a", "label": "1: 5 % wrong", "top": 0, "left": 0, "height": 8, "width": 8}
    (folder / "places.json").write_text(json.dumps({"images": [image], "places": [place]}))
    (folder / "maps").mkdir()
    for name in ("a.png", "maps/01.png", "maps/01-truth.png"):
        save_palette(folder / name)


def _read_report(folder: Path) -> None:
    from crispseg.view.report import read_places

    read_places(folder)


def _class_map(folder: Path) -> None:
    names = {"CLASSES": json.dumps({"0": "a", "1": "b", "2": "c"})}
    write(folder / "map.tif", "uint8", 1, 24, tags=names, nodata=255, crs="EPSG:32633")


def _vectorize(folder: Path) -> None:
    from crispseg.errors import UserError
    from crispseg.geo.reader import open_raster
    from crispseg.geo.vectorize import vectorize_map

    with open_raster(str(folder / "map.tif")) as dataset:
        if dataset.width * dataset.height > 1 << 22:
            raise UserError("work of minutes")
    out = folder / "out.geojson"
    out.unlink(missing_ok=True)
    vectorize_map(str(folder / "map.tif"), str(out))


_BANDS = (".map.tif.crisp/job.json", ".map.tif.crisp/band-000000.z")
_JOURNAL = (".map.tif.crisp/job.json", ".map.tif.crisp/moves.json")


class _Stop(BaseException):
    """A run is killed here."""


def _stopped_in(function: str) -> Callable[[Path], None]:
    """A scene whose run was killed when it came to this function of `crispseg.predict.scene`."""

    def make(folder: Path) -> None:
        from crispseg.predict import scene as scenes

        def stop(*args: Any, **more: Any) -> None:
            raise _Stop

        write(folder / "scene.tif", "uint8", 3, 40)
        kept = getattr(scenes, function)
        setattr(scenes, function, stop)
        try:
            _predict(folder)
        except _Stop:
            pass
        finally:
            setattr(scenes, function, kept)

    return make


def _predict(folder: Path) -> None:
    from tests.predict.standins import StandIn

    from crispseg.geo.maps import Legend
    from crispseg.predict.engines import find_engine
    from crispseg.predict.scene import Request, Watcher, predict_scene
    from crispseg.predict.work import Settings

    model = StandIn()
    request = Request(Settings(tile=32, overlap=8, device="cpu"))
    target = folder / "map.tif"
    predict_scene(
        str(folder / "scene.tif"), target, model, Legend.of(model, "x"), request, find_engine("local"), Watcher()
    )
