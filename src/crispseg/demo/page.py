"""The demonstration's page: pictures inside, the maps beside it."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from crispseg.demo.held_out import HeldOut
from crispseg.evaluate.page import figure, line, note, page, section
from crispseg.evaluate.tables import Table, percent
from crispseg.models.base import SegmentationModel

if TYPE_CHECKING:
    from crispseg.demo.run import Demo

_FILES = {
    "map.tif": "class map, a Cloud Optimized GeoTIFF with colours and class names",
    "map.tif.aux.xml": "its class names and colours for GDAL",
    "map.qml": "its style for QGIS",
    "map_confidence.tif": "how sure the model is, 0 to 254",
    "map.gpkg": "polygons, GeoPackage",
    "map.geojson": "the same polygons, GeoJSON",
    "scene.jpg": "the scene",
    "truth.png": "its labels",
    "scores.json": "all scores",
}
_NO_REFERENCE = (
    "The scene comes without a georeference, so maps and polygons are in pixels, counted down from the upper left "
    "corner; the map of a georeferenced scene carries the scene's own reference system."
)


def demo_page(demo: Demo, scene: HeldOut, model: SegmentationModel) -> str:
    title = f"{demo.model} on a scene it was not trained on"
    pictures = {name: (demo.out / name).read_bytes() for name in ("side_by_side.png", "close_up.png")}
    trained = f"Trained on {model.info.training_data.rstrip('.')}." if model.info.training_data else ""
    body = [
        f"<h1>{html.escape(title)}</h1>",
        line(f"{scene.origin} {trained}"),
        note(scene.honesty),
        _figures(demo),
        figure(pictures["side_by_side.png"], "side_by_side.png", "The whole scene; red is where map and truth differ."),
        *section(class_table(demo)),
        "<h2>Close up</h2>",
        figure(pictures["close_up.png"], "close_up.png", "A corner of it, pixel by pixel."),
        "<h2>Files</h2>",
        _links(),
        f"<p>{html.escape(_NO_REFERENCE)}</p>",
        "<h2>Your own scene</h2>",
        "<pre>crisp predict city.tif -o map.tif --polygons map.gpkg</pre>",
    ]
    return page(title, body)


def class_table(demo: Demo) -> Table:
    scores, boundary = demo.scores, demo.boundary
    columns = (scores.iou, scores.f1, scores.precision, scores.recall, boundary.bf)
    rows = [(name, *(percent(values[i]) for values in columns)) for i, name in enumerate(demo.classes)]
    rows.append(("mean", *(percent(value) for value in (scores.miou, scores.mf1)), "", "", percent(boundary.mbf)))
    header = ("class", "IoU", "F1", "precision", "recall", f"BF@{boundary.tolerance:g}px")
    return Table("Scores", header, tuple(rows), f"In percent; {demo.conditions}.")


def _figures(demo: Demo) -> str:
    boundary = demo.boundary
    shown = {"mIoU": demo.scores.miou, "mF1": demo.scores.mf1, "overall accuracy": demo.scores.oa}
    shown[f"boundary F at {boundary.tolerance:g} px"] = boundary.mbf
    items = "".join(f"<li>{name}<b>{percent(value)}</b></li>" for name, value in shown.items())
    return f'<ul class="figures">{items}</ul>'


def _links() -> str:
    items = "".join(f'<li><a href="{name}">{name}</a>: {html.escape(what)}</li>' for name, what in _FILES.items())
    return f"<ul>{items}</ul>"
