"""The demonstration from model and scene to its folder: maps, polygons, scores, pictures and the page."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

from crispseg.data.classes import ClassTable
from crispseg.data.images import read_mask
from crispseg.demo.buildings import Buildings, find_buildings
from crispseg.demo.held_out import HeldOut, Patches
from crispseg.demo.page import demo_page
from crispseg.demo.pictures import draw_scene, make_pictures
from crispseg.errors import UserError
from crispseg.evaluate.worst import WorstWindow
from crispseg.files import replacing, write_json, write_text
from crispseg.metrics import BoundaryCounts, BoundaryScores, ConfusionMatrix, ConfusionScores
from crispseg.models.base import SegmentationModel
from crispseg.models.folder import load
from crispseg.models.shipped import DEFAULT
from crispseg.outputs import check_existing
from crispseg.predict.scene import Watcher

SCENE, TRUTH, MAP, CONFIDENCE = "scene.jpg", "truth.png", "map.tif", "map_confidence.tif"
PACKAGE, GEOJSON, PICTURE, CLOSE_UP = "map.gpkg", "map.geojson", "side_by_side.png", "close_up.png"
BUILDINGS = "buildings.png"
SCORES, PAGE = "scores.json", "index.html"
FILES = (SCENE, TRUTH, MAP, CONFIDENCE, PACKAGE, GEOJSON, PICTURE, CLOSE_UP, BUILDINGS, SCORES, PAGE)
_TOLERANCE = 3.0  # pixels, of the boundary scores
_SMALLEST, _DETAIL = 30.0, 1.5  # px: smaller regions are merged, smaller details smoothed away in the polygons


@dataclasses.dataclass(frozen=True)
class Demo:
    """What the demonstration made."""

    out: Path
    model: str  # as it was asked for
    conditions: str  # of the scores
    scores: ConfusionScores
    boundary: BoundaryScores
    classes: tuple[str, ...]
    seconds: float  # that maps, polygons and scores took
    command: str  # that makes it again
    buildings: Buildings  # of the second example

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "conditions": self.conditions,
            "scores": self.scores.to_dict(self.classes),
            "boundary": self.boundary.to_dict(self.classes),
            "buildings": {"IoU": self.buildings.iou, "patches": self.buildings.count},
        }


def run_demo(
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] = DEFAULT,
    scene: HeldOut | None = None,
    watcher: Watcher | None = None,
    existing: str = "refuse",
) -> Demo:
    """Segment the scene as `crisp predict` does, score the map and write all of it to `out`.

    `existing` says what to do about files of these names that are there already: refuse or replace.
    """
    out, scene = Path(out), scene or HeldOut()
    check_existing([out / name for name in FILES], existing)
    begun = time.monotonic()
    network = load(model)
    _check_classes(network, scene)
    for source, name in ((scene.image_path, SCENE), (scene.truth_path, TRUTH)):
        with replacing(out / name) as aside:
            shutil.copyfile(source, aside)
    tiles = _make_maps(out, network, watcher or Watcher())
    predicted, truth = read_mask(out / MAP), scene.truth()
    matrix, contours = ConfusionMatrix(len(scene.table.names)), BoundaryCounts(len(scene.table.names), _TOLERANCE)
    matrix.update(predicted, truth)
    contours.update(predicted, truth)
    height, width = truth.shape
    conditions = f"one scene of {width} x {height} px, {tiles}, boundaries within {_TOLERANCE:g} px"
    demo = Demo(
        out,
        os.fspath(model),
        conditions,
        matrix.scores(),
        contours.scores(),
        scene.table.names,
        time.monotonic() - begun,
        shlex.join(["crisp", "demo", "--out", str(out), "--model", os.fspath(model)]),
        find_buildings(network, Patches()),
    )
    write_json(out / SCORES, demo.to_dict())
    pictures = make_pictures(scene, truth, predicted)
    _draw(out, {PICTURE: pictures.whole, CLOSE_UP: pictures.close_up}, scene.table)
    _draw(out, {BUILDINGS: demo.buildings.shown}, Patches().table)
    write_text(out / PAGE, demo_page(demo, scene, network, pictures))
    return demo


def _check_classes(model: SegmentationModel, scene: HeldOut) -> None:
    if model.info.classes != scene.table.names:
        raise UserError(
            f"the demonstration's scene has the classes {', '.join(scene.table.names)}, but the model {model.name} "
            f"knows {', '.join(model.info.classes) or 'no names'}; give a model trained on them"
        )


def _make_maps(out: Path, model: SegmentationModel, watcher: Watcher) -> str:
    """The class map and its polygons, by the code of `crisp predict` and `crisp vectorize`; says which tiles."""
    from crispseg.geo.maps import MapChoice
    from crispseg.geo.polygons import PolygonChoice
    from crispseg.geo.vectorize import vectorize_map
    from crispseg.predict.batch import predict_scenes
    from crispseg.predict.scene import Request
    from crispseg.predict.work import Settings

    polygons = PolygonChoice(str(out / PACKAGE), _SMALLEST, _DETAIL)
    settings = Settings(precision="float32")  # the same figures on every machine
    request = Request(settings, maps=MapChoice(confidence=True), polygons=polygons)
    target = str(out / MAP)
    report = predict_scenes([str(out / SCENE)], target, model, request, existing="replace", watcher=watcher)
    for _, reason in report.failures:
        raise UserError(reason)
    watcher.say(f"writing {out / GEOJSON}")
    vectorize_map(target, str(out / GEOJSON), str(out / CONFIDENCE), _SMALLEST, _DETAIL, "replace")
    tile = request.settings.tile
    return f"tiles of {tile} px that overlap by {tile // 4}"


def _draw(out: Path, windows: dict[str, WorstWindow], table: ClassTable) -> None:
    for name, window in windows.items():
        with replacing(out / name) as aside:
            draw_scene(window, table).save(aside, format="PNG", optimize=True)
