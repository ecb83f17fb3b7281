"""What a folder is, and the application that shows it: a training run, an evaluation, a comparison, a demonstration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from crispseg.errors import UserError

if TYPE_CHECKING:
    from fastapi import FastAPI

_RUN, _REPORT, _COMPARISON = "config.yaml", "report.html", "comparison.html"
_DEMO = {"image": "scene.jpg", "truth": "truth.png", "confidence": "map_confidence.tif", "polygons": "map.gpkg"}


def folder_app(path: str | os.PathLike[str]) -> FastAPI:
    folder = Path(path)
    if (folder / _RUN).is_file():
        from crispseg.view.run import run_app

        return run_app(folder)
    for page in (_REPORT, _COMPARISON):
        if (folder / page).is_file():
            from crispseg.view.report import report_app

            return report_app(folder, page)
    if (folder / "map.tif").is_file():
        return _demo_app(folder)
    raise UserError(
        f"{folder} is neither a training run (it has no {_RUN}) nor a report (no {_REPORT} or {_COMPARISON}); to look "
        "at a map name its file"
    )


def _demo_app(folder: Path) -> FastAPI:
    """What `crisp demo` leaves, as far as it is there."""
    from crispseg.view.app import make_app
    from crispseg.view.scene import Files, Scene

    there = {kind: str(folder / name) for kind, name in _DEMO.items() if (folder / name).is_file()}
    return make_app([Scene(Files((str(folder / "map.tif"),), **there), title=folder.name)])
