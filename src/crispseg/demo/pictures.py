"""Image, truth, map and errors beside each other, and the two pictures with a divider between them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crispseg.data.classes import IGNORE, ClassTable
from crispseg.data.drawing import outline, paint
from crispseg.demo.held_out import HeldOut
from crispseg.evaluate.pictures import draw_worst
from crispseg.evaluate.report import encoded
from crispseg.evaluate.worst import WorstWindow

if TYPE_CHECKING:
    from PIL import Image

_SHRINK = 4  # the picture shows every fourth pixel of the scene
_WIDEST = 1400  # px of the pictures with the divider
_COVER = 0.65  # how much of the map's colour lies over the image


@dataclasses.dataclass(frozen=True)
class Pictures:
    """All that the page shows: two halves of the divider, the whole scene and a part of it."""

    image: bytes
    overlay: bytes
    whole: WorstWindow
    close_up: WorstWindow


def make_pictures(scene: HeldOut, truth: NDArray[np.uint8], predicted: NDArray[np.uint8]) -> Pictures:
    image = scene.image()
    shrink = max(1, -(-image.shape[1] // _WIDEST))
    shown = _shrunk(image, shrink).astype(float)
    few = predicted[shrink // 2 :: shrink, shrink // 2 :: shrink][: shown.shape[0], : shown.shape[1]]
    colours = outline(paint(few, scene.table.palette), few)
    over = ((1 - _COVER) * shown + _COVER * colours).astype(np.uint8)
    size = (image.shape[1] // _SHRINK, image.shape[0] // _SHRINK)
    every = (slice(_SHRINK // 2, size[1] * _SHRINK, _SHRINK), slice(_SHRINK // 2, size[0] * _SHRINK, _SHRINK))
    near = scene.close_up
    return Pictures(
        _jpeg(shown.astype(np.uint8)),
        _jpeg(over),
        as_window(_shrunk(image, _SHRINK), truth[every], predicted[every], "scene"),
        as_window(image[near], truth[near], predicted[near], "scene"),
    )


def draw_scene(window: WorstWindow, table: ClassTable) -> Image.Image:
    """In the form of the report's worst windows."""
    return draw_worst(window, table.names, table.palette, "CRISP")


def _shrunk(pixels: NDArray[np.uint8], by: int) -> NDArray[np.uint8]:
    from PIL import Image

    size = (pixels.shape[1] // by, pixels.shape[0] // by)
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))


def as_window(image: NDArray[Any], truth: NDArray[np.uint8], predicted: NDArray[np.uint8], name: str) -> WorstWindow:
    """In the form of the report's worst windows, whose drawing it shares."""
    labels = truth != IGNORE
    wrong, labelled = int(((truth != predicted) & labels).sum()), int(labels.sum())
    return WorstWindow(0, name, 0, 0, wrong, labelled, wrong / max(labelled, 1), image, truth, predicted)


def _jpeg(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    return encoded(Image.fromarray(pixels), "jpeg")
