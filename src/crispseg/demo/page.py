"""The demonstration's page: pictures inside, the maps beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crispseg.demo.held_out import HeldOut
from crispseg.demo.pictures import Pictures
from crispseg.evaluate.page import figure, legend, panels
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


def demo_page(demo: Demo, scene: HeldOut, model: SegmentationModel, pictures: Pictures) -> str:
    from crispseg.view.pages import render_alone

    table, boundary = scene.table, demo.boundary
    trained = f"Trained on {model.info.training_data.rstrip('.')}." if model.info.training_data else ""
    shown = {"mIoU": demo.scores.miou, "mF1": demo.scores.mf1, "overall accuracy": demo.scores.oa}
    shown[f"boundary F at {boundary.tolerance:g} px"] = boundary.mbf
    height, width = scene.truth().shape
    return render_alone(
        "demo.html",
        alone=True,
        title="A scene that was not trained on",
        line=f"{scene.origin} Mapped by {demo.model}. {trained}",
        pictures=pictures,
        size=(width, height),
        figures=[figure(name, percent(value)) for name, value in shown.items()],
        seconds=f"{demo.seconds:.0f} s",
        command=demo.command,
        honesty=scene.honesty,
        whole=panels(pictures.whole, table.palette, "map"),
        close_up=panels(pictures.close_up, table.palette, "map"),
        classes=legend(table.names, table.palette),
        table=class_table(demo),
        files=_FILES,
        no_reference=_NO_REFERENCE,
        folder=str(demo.out),
    )


def class_table(demo: Demo) -> Table:
    scores, boundary = demo.scores, demo.boundary
    columns = (scores.iou, scores.f1, scores.precision, scores.recall, boundary.bf)
    rows = [(name, *(percent(values[i]) for values in columns)) for i, name in enumerate(demo.classes)]
    rows.append(("mean", *(percent(value) for value in (scores.miou, scores.mf1)), "", "", percent(boundary.mbf)))
    header = ("class", "IoU", "F1", "precision", "recall", f"BF@{boundary.tolerance:g}px")
    return Table("Scores", header, tuple(rows), f"In percent; {demo.conditions}.")
