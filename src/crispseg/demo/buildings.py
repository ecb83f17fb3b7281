"""The demonstration's second example: how well buildings are found in patches of a city that was trained on."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from crispseg.demo.held_out import Patches
from crispseg.demo.pictures import as_window
from crispseg.evaluate.worst import WorstWindow
from crispseg.metrics import ConfusionMatrix
from crispseg.models.base import SegmentationModel
from crispseg.predict.segment import segment


@dataclasses.dataclass(frozen=True)
class Buildings:
    """What was found in the patches."""

    iou: float
    count: int  # of patches
    shown: WorstWindow  # all patches as one picture; the map says building or not, as the labels do


def find_buildings(model: SegmentationModel, patches: Patches) -> Buildings:
    image, truth, side = patches.image(), patches.truth(), patches.side
    corners = list(itertools.product(range(0, truth.shape[0], side), range(0, truth.shape[1], side)))
    found = np.empty_like(truth)
    for top, left in corners:
        part = (slice(top, top + side), slice(left, left + side))
        found[part] = segment(image[part], model) == model.info.classes.index("building")
    matrix = ConfusionMatrix(len(patches.table.names))
    matrix.update(found, truth)
    iou = float(matrix.scores().iou[patches.table.names.index("building")])
    return Buildings(iou, len(corners), as_window(image, truth, found, "patches"))
