"""Arrays as small pictures: classes in their colours, confidence on a ramp, what is wrong in magenta."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crispseg.geo.writer import NODATA
from crispseg.view.legend import Colour
from crispseg.view.space import TILE

OFF = (216, 27, 185)  # where a map is wrong, or two differ: no usual class has it; answers.js has it, too
# Dark where the model is unsure, light where it is sure; even steps of lightness, also for the colour-blind.
RAMP: tuple[Colour, ...] = ((0, 32, 76), (66, 78, 108), (124, 123, 120), (185, 171, 110), (255, 234, 70))


@functools.cache
def ramp_colours() -> tuple[Colour, ...]:
    """254 + 1 colours of a confidence from 0 to SURE."""
    stops = np.linspace(0, 254, len(RAMP))
    channels = [np.interp(np.arange(255), stops, [colour[i] for colour in RAMP]) for i in range(3)]
    return tuple((round(r), round(g), round(b)) for r, g, b in zip(*channels, strict=True))


def paint_ids(ids: NDArray[np.uint8], colours: Sequence[Colour], off: Iterable[int] = ()) -> bytes:
    """A PNG of ids (h, w); those without a colour, and those that are switched off, are transparent."""
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(ids)).convert("L")
    # a whole palette: an id beyond a short one would show the last colour
    table = bytes(channel for colour in colours for channel in colour)
    picture.putpalette(table + bytes(768 - len(table)))
    hidden = set(off)
    opaque = bytes(0 if k in hidden or k >= len(colours) else 255 for k in range(256))
    return _saved(picture, "png", transparency=opaque, compress_level=3)


def paint_rgb(values: NDArray[np.uint8], has_data: NDArray[np.bool_]) -> bytes:
    """A JPEG of (3, h, w), or a PNG where parts have no data."""
    from PIL import Image

    pixels = np.moveaxis(values, 0, -1)
    if has_data.all():
        return _saved(Image.fromarray(np.ascontiguousarray(pixels)), "jpeg", quality=88, subsampling=0)
    opaque = np.where(has_data, np.uint8(255), np.uint8(0))
    return _saved(Image.fromarray(np.dstack([pixels, opaque])), "png", compress_level=3)


@functools.cache
def empty_tile() -> bytes:
    return paint_ids(np.full((TILE, TILE), NODATA, np.uint8), ())


def media_type(picture: bytes) -> str:
    return "image/jpeg" if picture.startswith(b"\xff\xd8") else "image/png"


def _saved(picture: Any, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()
