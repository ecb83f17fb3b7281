"""A report that `crisp eval` wrote, served with its worst places as links onto the map."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from fastapi import HTTPException, Response

from crispseg import config as configs
from crispseg.errors import UserError
from crispseg.reading import read_json
from crispseg.view.app import make_app, page
from crispseg.view.pages import alone_policy
from crispseg.view.scene import Files, Place, Scene

if TYPE_CHECKING:
    from fastapi import FastAPI

PLACES = "places.json"  # what `crisp eval` writes about them
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
_KINDS = {".html": "text/html", ".json": "application/json", ".csv": "text/csv", ".md": "text/plain"}
_KINDS |= {".jpg": "image/jpeg", ".png": "image/png"}


def report_app(folder: Path, front_name: str) -> FastAPI:
    """Files of the folder are found by their whole name in a list that is made now."""
    scenes, places = read_places(folder)
    files = {str(p.relative_to(folder).as_posix()): p for p in folder.rglob("*") if p.suffix in _KINDS and p.is_file()}

    def routes(app: FastAPI) -> None:
        @app.get("/")
        def front() -> Response:
            return _page(files[front_name], depth=0)

        @app.get("/places.json")
        def known() -> dict[str, Any]:
            return {"places": places}

        @app.get("/{name:path}")
        def file(name: str) -> Response:
            if name not in files:
                raise HTTPException(404)
            path = files[name]
            if path.suffix == ".html":
                return _page(path, depth=name.count("/"))
            return Response(path.read_bytes(), media_type=_KINDS[path.suffix])

    return make_app(scenes, routes)


def _page(path: Path, depth: int) -> Response:
    """A page that was made to stand alone; here it may also load the script that makes links of its places."""
    try:
        text = _POLICY.sub("", path.read_text(encoding="utf-8"), count=1)
    except OSError as error:
        raise UserError(f"{path} is gone: {error.strerror}") from error
    policy = (
        alone_policy(text).replace("script-src ", "script-src 'self' ").replace("connect-src ", "connect-src 'self' ")
    )
    script = f'<script src="{"../" * depth}static/report.js"></script>\n</body>'
    text = text.replace("</head>", '<link rel="icon" href="data:,">\n</head>', 1).replace("</body>", script, 1)
    return page(text, f"{policy}; frame-ancestors 'none'")


class _Image(TypedDict):
    name: str
    file: str
    map: str
    truth: str


class _Place(TypedDict):
    image: str
    label: str
    place: int
    top: int
    left: int
    height: int
    width: int


class _Listed(TypedDict):
    images: list[_Image]
    places: list[_Place]


def read_places(folder: Path) -> tuple[list[Scene], list[dict[str, int]]]:
    """One scene per image with worst places, and for each place which scene it is in and as which of its places."""
    if not (folder / PLACES).exists():
        return [], []
    try:
        listed: _Listed = configs.checked(_Listed, read_json(folder / PLACES), "it")
    except UserError as error:
        raise UserError(f"{folder / PLACES} cannot be read: {error}; evaluate again") from error
    for name in (name for image in listed["images"] for name in (image["map"], image["truth"])):
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{folder / PLACES} names {name}, which lies outside the report")
    scenes: list[Scene] = []
    links: list[dict[str, int]] = []
    for image in listed["images"]:
        windows = [place for place in listed["places"] if place["image"] == image["name"]]
        marks = tuple(Place(p["label"], p["top"], p["left"], p["height"], p["width"]) for p in windows)
        files = Files(
            (str(folder / image["map"]),),
            image=image["file"] if os.path.isfile(image["file"]) else None,
            truth=str(folder / image["truth"]),
        )
        links += [{"place": p["place"], "scene": len(scenes), "mark": i} for i, p in enumerate(windows)]
        scenes.append(Scene(files, title=image["name"], places=marks))
    return scenes, links
