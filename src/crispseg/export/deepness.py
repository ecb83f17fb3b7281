"""What the QGIS plug-in Deepness can run: bytes in square tiles, probabilities of each class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crispseg.errors import UserError
from crispseg.models.base import ModelInfo

TILE = 512


def for_deepness(target: Path, given: dict[str, Any], info: ModelInfo) -> dict[str, Any]:
    """The fields of a `Choice` with those that Deepness asks for; raises a UserError where others were given."""
    choice: dict[str, Any] = {"output": "softmax", "size": (TILE, TILE), "batch": 1} | given
    height, width = choice["size"]
    if target.suffix.lower() != ".onnx":
        raise UserError(f"Deepness reads ONNX: --deepness is written to a file that ends in .onnx, not {target.name!r}")
    if height != width:
        raise UserError(f"Deepness has square tiles, not {width} x {height} px; give --size {height} {height}")
    if choice["output"] != "softmax":
        raise UserError(f"Deepness wants probabilities: leave out --output {choice['output']}")
    if info.dtype not in ("", "uint8"):
        raise UserError(
            f"Deepness shows a model bytes, and this one was trained on {info.dtype} pixels; `crisp predict` maps them"
        )
    return choice
