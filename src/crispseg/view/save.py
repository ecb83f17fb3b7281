"""The map's page: served with tiles, or saved as one file with the pixels inside."""

from __future__ import annotations

import base64
import io
import json
import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from crispseg.errors import UserError
from crispseg.outputs import making
from crispseg.view.pages import data_uri, render, render_alone, static_text
from crispseg.view.painting import RAMP, paint_rgb
from crispseg.view.scene import Scene
from crispseg.view.space import Box

LARGEST = 4096  # px a side that a saved page may hold; graphics cards take such a picture whole
_WORLD = Box(-180, -85, 180, 85)


def map_page(scene: Scene, base: str, static: str) -> str:
    """The page that asks the server; `base` is where the scene's answers are, `static` the scripts, from the page."""
    about = {**scene.describe(), "base": base, "worker": f"{static}maplibre-gl-csp-worker.js", "ramp": RAMP}
    return render("map.html", scene=about, about=script_json(about), static=static, alone=False, worker="")


def save_page(scene: Scene, target: str | os.PathLike[str], existing: str = "refuse") -> int:
    """Write one file that needs nothing else; gives its size in bytes. A file of that name is refused or replaced."""
    grid = scene.reference.grid
    if max(grid.height, grid.width) > LARGEST:
        raise UserError(
            f"{scene.reference.path} is {grid.width} x {grid.height} px; a saved page holds {LARGEST} x {LARGEST} at "
            f"most. Cut a part out of it: gdal_translate -srcwin LEFT TOP {LARGEST} {LARGEST} "
            f"{shlex.quote(scene.reference.path)} part.tif"
        )
    about = {**scene.describe(), "base": "", "ramp": RAMP, "saved": _contents(scene)}
    _leave_out(scene, about)
    worker = base64.b64encode(static_text("maplibre-gl-csp-worker.js").encode()).decode()
    text = render_alone("map.html", scene=about, about=script_json(about), static="", alone=True, worker=worker)
    with making(Path(target), existing) as aside:
        aside.write_text(text, encoding="utf-8")
    return len(text.encode())


def _leave_out(scene: Scene, about: dict[str, Any]) -> None:
    """Maps on another grid than the first are not compared pixel by pixel without a server that warps them."""
    grid = scene.reference.grid
    for layer, other in (("errors", "truth"), ("difference", "b")):
        if other in scene.classes and scene.classes[other].raster.grid != grid:
            about["themes"] = [theme for theme in about["themes"] if theme["id"] != layer]
            about["notes"].append(
                f"{scene.classes[other].raster.path} lies on another grid, so it is not compared here."
            )


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _contents(scene: Scene) -> dict[str, Any]:
    """Pictures of all layers in their own pixels, the corners they lie at, the counts and the polygons."""
    side = LARGEST
    saved: dict[str, Any] = {"legend": scene.counting.wait(), "corners": scene.reference.corners, "layers": {}}
    for name, layer in scene.classes.items():
        values, has_data = layer.raster.small(tuple(range(1, min(layer.raster.bands, 3) + 1)), side)
        ids = np.where(has_data, layer.numbers(values), np.uint8(255))
        saved["layers"][name] = {"ids": data_uri(_grey(ids)), "corners": layer.raster.corners}
    if scene.confidence is not None:
        values, has_data = scene.confidence.raster.small((1,), side)
        steps = np.where(has_data, scene.confidence.steps(values[0]), np.uint8(255))
        saved["layers"]["confidence"] = {"ids": data_uri(_grey(steps)), "corners": scene.confidence.raster.corners}
    if scene.image is not None:
        values, has_data = scene.image.raster.small(scene.image.bands, side)
        picture = paint_rgb(scene.image.to_rgb(values), has_data)
        saved["layers"]["image"] = {"picture": data_uri(picture), "corners": scene.image.raster.corners}
    if scene.features is not None:
        around = scene.reference.in_pixels or scene.reference.turn
        saved["polygons"] = scene.features.inside(scene.reference.box if around else _WORLD, 22)
    return saved


def _grey(ids: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(ids)).save(buffer, "png", optimize=True)
    return buffer.getvalue()
