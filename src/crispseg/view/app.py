"""The web application: pages, tiles and answers, all from what it was given when it was made.

No part of a request is ever used as a file's name: requests carry numbers and names of layers, which are looked up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse

from crispseg.errors import UserError
from crispseg.view.pages import STATIC, static_file
from crispseg.view.painting import media_type
from crispseg.view.save import map_page
from crispseg.view.scene import Scene
from crispseg.view.space import DEEPEST, Box
from crispseg.view.windows import MOST_WINDOWS, Marked, windows_file

_MOST_CLASSES = 255
Routes = Callable[[FastAPI], None]


def make_app(scenes: Sequence[Scene] = (), more: Routes | None = None) -> FastAPI:
    """An application that shows `scenes` under scenes/NUMBER/; `more` adds a front page, else it is the first map."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(UserError, _sentence)
    app.add_exception_handler(Exception, _fault)
    _add_static(app)
    _add_scenes(app, scenes)
    if more is not None:
        more(app)
    elif scenes:

        @app.get("/")
        def front() -> Response:
            return page(map_page(scenes[0], base="scenes/0/", static="static/"))

    return app


def page(text: str, policy: str | None = None) -> Response:
    headers = {"cache-control": "no-store"} | ({"content-security-policy": policy} if policy else {})
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)


def _sentence(request: Request, error: Exception) -> Response:
    """What a person can mend: a file that is gone, or damaged."""
    return JSONResponse({"error": str(error)}, 503, {"cache-control": "no-store"})


def _fault(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500, {"cache-control": "no-store"})


def _add_static(app: FastAPI) -> None:
    @app.get("/static/{name}")
    def static(name: str) -> Response:
        if name not in STATIC:
            raise HTTPException(404)
        return Response(static_file(name), media_type=STATIC[name], headers={"cache-control": "max-age=3600"})


def _add_scenes(app: FastAPI, scenes: Sequence[Scene]) -> None:
    def find(number: int) -> Scene:
        if not 0 <= number < len(scenes):
            raise HTTPException(404)
        return scenes[number]

    @app.get("/scenes/{number}/")
    def map_of(number: int) -> Response:
        return page(map_page(find(number), base="", static="../../static/"))

    @app.get("/scenes/{number}/legend.json")
    def legend(number: int) -> dict[str, Any]:
        return find(number).counting.state()

    @app.get("/scenes/{number}/tiles/{layer}/{z}/{x}/{y}")
    def tile(number: int, layer: str, z: int, x: int, y: int, off: str = "") -> Response:
        scene = find(number)
        if not (scene.knows(layer) and 0 <= z <= DEEPEST and 0 <= x < 2**z and 0 <= y < 2**z):
            raise HTTPException(404)
        picture = scene.tile(layer, z, x, y, _hidden(off))
        return Response(picture, media_type=media_type(picture), headers={"cache-control": "private, max-age=600"})

    @app.get("/scenes/{number}/point.json")
    def point(number: int, lon: float, lat: float) -> dict[str, Any]:
        if not (math.isfinite(lon) and math.isfinite(lat)):
            raise HTTPException(422)
        return find(number).point(lon, lat)

    @app.get("/scenes/{number}/polygons.json")
    def polygons(number: int, west: float, south: float, east: float, north: float, zoom: float) -> dict[str, Any]:
        features = find(number).features
        if features is None or not all(map(math.isfinite, (west, south, east, north, zoom))):
            raise HTTPException(404)
        return features.inside(Box(west, south, east, north), max(0, min(DEEPEST, zoom)))

    @app.get("/scenes/{number}/windows.gpkg")
    def windows(number: int, window: Annotated[list[str], Query(max_length=MOST_WINDOWS)]) -> Response:
        content = windows_file(find(number), [Marked.read(text) for text in window])
        headers = {"content-disposition": 'attachment; filename="windows.gpkg"', "cache-control": "no-store"}
        return Response(content, media_type="application/geopackage+sqlite3", headers=headers)


def _hidden(text: str) -> frozenset[int]:
    """The classes that are switched off, as in 1.4.7."""
    words = text.split(".") if text else []
    if len(words) > _MOST_CLASSES or not all(word.isdecimal() and len(word) <= 3 for word in words):
        raise HTTPException(422)
    return frozenset(k for k in map(int, words) if k < _MOST_CLASSES)
