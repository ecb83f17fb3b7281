"""A picture of what was made: images beside their labels, and the classes' colours below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crispseg.data.classes import IGNORE, ClassTable
from crispseg.data.drawing import paint
from crispseg.files import replacing

PICTURES = 12  # on the sheet, at most
SHOWN = 240  # px of a picture's longer side
_ACROSS, _GAP, _TEXT = 3, 8, 16
_STRENGTH = 0.6  # of a class's colour over the image


class Drawn(NamedTuple):
    """A small picture of an image and of its mask."""

    name: str
    image: NDArray[np.uint8]  # (h, w, 3)
    mask: NDArray[np.uint8]  # (h, w) class ids


def draw_labels(drawn: Sequence[Drawn], table: ClassTable, path: Path) -> None:
    """Each image as it is, and with its labels over it; what is ignored is darkened."""
    from PIL import Image, ImageDraw

    across = min(_ACROSS, len(drawn))
    down = -(-len(drawn) // across)
    cell = (2 * SHOWN + 3 * _GAP, SHOWN + _TEXT + _GAP)
    legend = [(table.names[k], table.palette[k]) for k in range(len(table.names))]
    lines = -(-len(legend) // (2 * across))
    sheet = Image.new("RGB", (across * cell[0], down * cell[1] + (lines + 1) * (_TEXT + 4)), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (name, image, mask) in enumerate(drawn):
        x, y = number % across * cell[0] + _GAP, number // across * cell[1]
        draw.text((x, y + 2), name[:60], fill="black")
        sheet.paste(Image.fromarray(image), (x, y + _TEXT))
        sheet.paste(Image.fromarray(_overlaid(image, mask, table)), (x + SHOWN + _GAP, y + _TEXT))
    for number, (name, colour) in enumerate(legend):
        x = number % (2 * across) * (cell[0] // 2) + _GAP
        y = down * cell[1] + number // (2 * across) * (_TEXT + 4) + 4
        draw.rectangle((x, y, x + _TEXT, y + _TEXT - 4), fill=colour, outline="black")
        draw.text((x + _TEXT + 6, y), name[:32], fill="black")
    with replacing(path) as aside:
        sheet.save(aside, "png")


def _overlaid(image: NDArray[np.uint8], mask: NDArray[np.uint8], table: ClassTable) -> NDArray[np.uint8]:
    colours = paint(mask, table.palette).astype(np.float32)
    mixed = (1 - _STRENGTH) * image + _STRENGTH * colours
    shown: NDArray[np.uint8] = np.where((mask == IGNORE)[..., None], image * (1 - _STRENGTH), mixed).astype(np.uint8)
    return shown
