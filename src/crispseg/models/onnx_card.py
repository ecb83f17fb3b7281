"""What an ONNX file says about itself: our card, and the keys that the QGIS plug-in Deepness reads.

Deepness divides pixels by 255 before it standardises them, and our graph wants them as they are: a mean of 0 and a
standard deviation of 1/255 undo the division. Its parser reads `tile_size`, its documentation says `tiles_size`; both
are written. `tiles_overlap` is in per cent, `resolution` in centimetres: the middle, by ratio, of those that a model
knows a range of, as without the key the plug-in resamples to 3 cm.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from crispseg import __version__
from crispseg import config as configs
from crispseg.errors import UserError
from crispseg.models.base import ModelInfo, SegmentationModel
from crispseg.reading import parse_json

FORMAT = 1
KEY = "crispseg"
INPUT = "image"  # the graph's input: raw pixels (batch, bands, height, width)
OUTPUTS = {"logits": "logits", "softmax": "probabilities", "argmax": "classes"}
_TILE, _OVERLAP = 512, 25  # what Deepness starts from: pixels, per cent


@dataclasses.dataclass(frozen=True)
class Card:
    """Our own entry: all that `crispseg.load` needs to use the file like any model. Logits were divided by the
    temperature in `info` inside the graph."""

    name: str
    num_classes: int
    in_channels: int
    info: ModelInfo
    output: str = "logits"  # or softmax, argmax
    precision: str = "float32"  # or float16, int8
    size: tuple[int | None, int | None, int | None] = (None, None, None)  # batch, height, width; None: any


def card_of(model: SegmentationModel, **how: Any) -> Card:
    return Card(model.name, model.num_classes, model.in_channels, model.info, **how)


def write_metadata(card: Card) -> dict[str, str]:
    """All values are JSON."""
    height = card.size[1]
    info = card.info
    names = info.classes or tuple(f"class {i}" for i in range(card.num_classes))
    values: dict[str, Any] = {
        KEY: {"format": FORMAT, "version": __version__, **configs.to_dict(card)},
        "model_type": "Segmentor",
        "class_names": {str(i): name for i, name in enumerate(names)},
        "tile_size": height or _TILE,
        "tiles_size": height or _TILE,
        "tiles_overlap": _OVERLAP,
        "standardization_mean": [0.0] * card.in_channels,
        "standardization_std": [1.0 / 255.0] * card.in_channels,
        "seg_thresh": 0.0,
    }
    if info.resolution or info.resolutions:
        values["resolution"] = 100.0 * (info.resolution or math.sqrt(math.prod(info.resolutions or ())))
    return {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}


def read_metadata(entries: Mapping[str, str], where: str) -> Card:
    """The card of an ONNX file; `where` is its name in an error."""
    if KEY not in entries:
        raise UserError(f"{where} says nothing about its classes and bands: it was not written by `crisp export`")
    try:
        found = parse_json(entries[KEY], KEY)
        version = int(found.pop("format"))
        found.pop("version", None)
    except (ValueError, KeyError, TypeError, AttributeError, UserError) as error:
        raise UserError(f"{where} is damaged: its entry {KEY!r} cannot be read ({error})") from error
    if version > FORMAT:
        raise UserError(f"{where} was exported by a newer crispseg (format {version}); upgrade crispseg")
    return configs.build(Card, found, f"{where}: ")
