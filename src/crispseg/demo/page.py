"""The demonstration's page: pictures inside, the maps beside it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from crispseg.demo.held_out import HeldOut, Patches
from crispseg.demo.pictures import Pictures
from crispseg.evaluate.page import figure, legend, marks, panels
from crispseg.evaluate.tables import Table
from crispseg.metrics.words import percent
from crispseg.models.base import SegmentationModel
from crispseg.models.shipped import DEFAULT

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
# Of the shipped model, by benchmarks/results/strangers.md; docs/reference/models.md says the same at length.
_CANNOT = (
    "Buildings of a city it has not seen are half found: in Potsdam it reaches an IoU of 53 at pixels of 0.1 m and 41 "
    "at 0.3 m (patches of 11 m, with little around a roof); in American towns, of which it learnt other parts, 71, in "
    "Christchurch 83.",
    "Streets: in American towns 93 % of them are found, and car parks and drives with them. Of Potsdam's paved ground "
    "35 to 45 % is found as road, the rest is taken for land or vegetation. In Dubai 39 % of the roads are found.",
    "Shadows of tall buildings, which it takes for water.",
    "Large bright roofs: half of Dubai's building pixels are taken for land.",
    "Houses that stand close together: it draws them as one.",
)


def demo_page(demo: Demo, scene: HeldOut, model: SegmentationModel, pictures: Pictures) -> str:
    from crispseg.view.pages import render_alone

    table, boundary = scene.table, demo.boundary
    patches, found = Patches(), demo.buildings
    shown = {"mIoU": demo.scores.miou, "mF1": demo.scores.mf1, "overall accuracy": demo.scores.oa}
    shown[f"boundary F at {boundary.tolerance:g} px"] = boundary.mbf
    height, width = scene.truth().shape
    return render_alone(
        "demo.html",
        alone=True,
        title="A scene that was not trained on",
        line=f"{scene.origin} Mapped by {demo.model}. {_trained_on(model)}",
        pictures=pictures,
        size=(width, height),
        figures=[figure(name, percent(value)) for name, value in shown.items()],
        seconds=f"{demo.seconds:.0f} s",
        command=demo.command,
        honesty=scene.honesty,
        whole=panels(pictures.whole, table.palette, "map"),
        close_up=panels(pictures.close_up, table.palette, "map"),
        classes=legend(table.names, table.palette),
        marks=marks(table.palette),
        buildings={
            "title": f"Buildings of {found.count} patches: IoU {percent(found.iou)}",
            "origin": patches.origin,
            "honesty": patches.honesty,
            "panels": panels(found.shown, patches.table.palette, "map"),
            "legend": legend(patches.table.names, patches.table.palette) + marks(patches.table.palette)[:1],
        },
        cannot=_CANNOT if demo.model == DEFAULT else tuple(filter(None, (model.info.notes,))),
        table=class_table(demo),
        files=_FILES,
        no_reference=_NO_REFERENCE,
        folder=str(demo.out),
    )


def _trained_on(model: SegmentationModel) -> str:
    """In words: which splits, by their hashes, is in the model's card."""
    imagery = re.sub(r" #[0-9a-f]+", "", model.info.training_data.partition(":")[0])
    return f"Trained on {imagery.rstrip('.')}." if imagery else ""


def class_table(demo: Demo) -> Table:
    scores, boundary = demo.scores, demo.boundary
    columns = (scores.iou, scores.f1, scores.precision, scores.recall, boundary.bf)
    rows = [(name, *(percent(values[i]) for values in columns)) for i, name in enumerate(demo.classes)]
    rows.append(("mean", *(percent(value) for value in (scores.miou, scores.mf1)), "", "", percent(boundary.mbf)))
    header = ("class", "IoU", "F1", "precision", "recall", f"BF@{boundary.tolerance:g}px")
    return Table("Scores", header, tuple(rows), f"In percent; {demo.conditions}.")
