"""A training run as it goes on: its curves, its scores and its newest pictures, read anew whenever the page asks."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from fastapi import HTTPException, Response

from crispseg import config as configs
from crispseg.train.log import METRICS, read_metrics
from crispseg.view.app import make_app, page
from crispseg.view.pages import render

if TYPE_CHECKING:
    from fastapi import FastAPI

_POINTS = 600  # of a curve that are sent; more cannot be seen
_SAMPLE = re.compile(r"(.+)-(\d{6,})\.png")
Curve = list[tuple[int, float]]


def run_app(folder: Path) -> FastAPI:
    def routes(app: FastAPI) -> None:
        @app.get("/")
        def front() -> Response:
            return page(render("run.html", title=folder.name, static="static/", alone=False))

        @app.get("/run.json")
        def state() -> dict[str, Any]:
            return run_state(folder)

        @app.get("/samples/{number}")
        def sample(number: int) -> Response:
            pictures = newest_samples(folder)
            if not 0 <= number < len(pictures):
                raise HTTPException(404)
            return Response(pictures[number][2].read_bytes(), media_type="image/png")

    return make_app(more=routes)


def run_state(folder: Path) -> dict[str, Any]:
    records = read_metrics(folder / METRICS)
    config: _Config = configs.checked(_Config, configs.read_yaml(folder / "config.yaml"), str(folder / "config.yaml"))
    latest: dict[str, Any] = next((record for record in reversed(records) if "val/mIoU" in record), {})
    log = folder / METRICS
    return {
        "name": folder.name,
        "model": config.get("model", {}).get("name", ""),
        "data": config.get("data", {}).get("path", ""),
        "steps": config.get("schedule", {}).get("steps"),
        "done": records[-1]["step"] if records else 0,
        "finished": (folder / "result.json").is_file(),
        "idle": time.time() - log.stat().st_mtime if log.is_file() else None,
        "curves": {
            "loss": thinned(_curve(records, "train/loss")),
            "mIoU": thinned(_curve(records, "val/mIoU")),
        },
        "classes": {
            name.removeprefix("val/IoU/"): value for name, value in latest.items() if name.startswith("val/IoU/")
        },
        "samples": [{"name": name, "step": step} for name, step, _ in newest_samples(folder)],
    }


class _Config(TypedDict, total=False):
    """Of a run's config, what is shown."""

    model: dict[str, Any]
    data: dict[str, Any]
    schedule: dict[str, Any]


def _curve(records: list[dict[str, Any]], name: str) -> Curve:
    return [(record["step"], record[name]) for record in records if isinstance(record.get(name), int | float)]


def thinned(curve: Curve) -> Curve:
    """At most _POINTS of them: means of neighbours, and the last as it is."""
    group = -(-len(curve) // _POINTS)
    if group <= 1:
        return curve
    parts = [curve[i : i + group] for i in range(0, len(curve) - 1, group)]
    return [(part[-1][0], sum(v for _, v in part) / len(part)) for part in parts] + curve[-1:]


def newest_samples(folder: Path) -> list[tuple[str, int, Path]]:
    """The newest picture of every sample image, by name."""
    newest: dict[str, tuple[int, Path]] = {}
    for path in (folder / "samples").glob("*.png"):
        if found := _SAMPLE.fullmatch(path.name):
            name, step = found[1], int(found[2])
            if step > newest.get(name, (-1, path))[0]:
                newest[name] = (step, path)
    return [(name, step, path) for name, (step, path) in sorted(newest.items())]
