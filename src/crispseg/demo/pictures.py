"""Image, truth, map and errors beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crispseg.data.classes import IGNORE, ClassTable
from crispseg.evaluate.pictures import draw_worst
from crispseg.evaluate.worst import WorstWindow

if TYPE_CHECKING:
    from PIL import Image


def draw_scene(
    image: NDArray[Any], truth: NDArray[np.uint8], predicted: NDArray[np.uint8], table: ClassTable
) -> Image.Image:
    """In the form of the report's worst windows."""
    labels = truth != IGNORE
    wrong = int(((truth != predicted) & labels).sum())
    labelled = int(labels.sum())
    window = WorstWindow(0, "scene", 0, 0, wrong, labelled, wrong / max(labelled, 1), image, truth, predicted)
    return draw_worst(window, table.names, table.palette, "CRISP")
