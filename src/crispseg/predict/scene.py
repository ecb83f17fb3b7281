"""One scene from its file to its finished maps: plan, journal, engine, maps, and last the renaming."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from crispseg import __version__, config, memory
from crispseg.errors import UserError
from crispseg.files import write_json
from crispseg.geo.maps import Legend, MapChoice, write_maps
from crispseg.geo.polygons import PolygonChoice, write_polygons
from crispseg.geo.regions import MapRows, in_parts
from crispseg.geo.scenes import Reading, Scene, open_scene
from crispseg.models.base import SegmentationModel
from crispseg.predict.bands import Pace
from crispseg.predict.engines import Engine
from crispseg.predict.journal import MOVES, Journal, journal_folder
from crispseg.predict.plan import Plan, make_plan
from crispseg.predict.products import Band, Products
from crispseg.predict.work import Settings, Work, find_device


@dataclasses.dataclass(frozen=True)
class Request:
    """What to make of every scene, and how."""

    settings: Settings = dataclasses.field(default_factory=Settings)
    reading: Reading = dataclasses.field(default_factory=Reading)
    maps: MapChoice = dataclasses.field(default_factory=MapChoice)
    polygons: PolygonChoice | None = None
    pace: Pace = dataclasses.field(default_factory=Pace)

    @property
    def products(self) -> Products:
        return Products(self.maps.confidence or self.polygons is not None, self.maps.probabilities)


@dataclasses.dataclass(frozen=True)
class Result:
    """The files made from a scene and the ground each class covers."""

    scene: str
    files: tuple[str, ...]
    unit: str  # of the areas: m2 or px
    classes: tuple[dict[str, Any], ...]  # id, class, pixels, area, share


class Watcher:
    """Is told how a scene comes along; the command draws its progress bar with it."""

    def begin(self, scene: Scene, plan: Plan, tiles_done: int) -> None:
        """A scene's tiles begin; some may be done from an earlier run."""

    def tile_done(self) -> None:
        """One more tile is evaluated."""

    def say(self, what: str) -> None:
        """A remark."""

    def warn(self, what: str) -> None:
        """Something the user must know."""
        self.say(what)


def predict_scene(
    path: str,
    target: Path,
    model: SegmentationModel,
    legend: Legend,
    request: Request,
    engine: Engine,
    watcher: Watcher,
) -> Result:
    """Make the maps of one scene, or go on where a killed run stopped. `target` appears when all is done."""
    scene = open_scene(path, model, request.reading)
    try:
        for warning in scene.warnings:
            watcher.warn(warning)
        plan = make_plan(scene.grid.height, scene.grid.width, request.settings.tile, request.settings.overlap)
        journal = Journal(target, _job(scene, legend, request), plan, request.products, model.num_classes)
        try:
            if not journal.moves.exists():
                _compute_bands(scene, plan, model, request, engine, journal, watcher)
                _make_files(scene, target, journal, legend, request, watcher)
            return _move_into_place(journal)
        finally:
            journal.release()
    finally:
        scene.source.close()


def is_waiting(target: Path) -> bool:
    """Whether a run for `target` was killed while its finished files were being renamed."""
    return (journal_folder(target) / MOVES).exists()


def _job(scene: Scene, legend: Legend, request: Request) -> dict[str, Any]:
    """All that the bytes of the maps depend on; a journal of another job is of no use."""
    stats = [(name, os.stat(name)) for name in scene.files if os.path.exists(name)]
    wanted = config.to_dict(request)
    del wanted["pace"]
    wanted["settings"]["device"] = find_device(request.settings.device).type
    return {
        "crispseg": __version__,
        "scene": os.path.abspath(scene.path) if os.path.exists(scene.path) else scene.path,
        "files": [[os.path.abspath(name), stat.st_size, stat.st_mtime_ns] for name, stat in stats],
        "grid": config.to_dict(scene.grid),
        "legend": config.to_dict(legend),
        "request": wanted,
    }


def _compute_bands(
    scene: Scene,
    plan: Plan,
    model: SegmentationModel,
    request: Request,
    engine: Engine,
    journal: Journal,
    watcher: Watcher,
) -> None:
    """Let the engine make what the journal lacks; a thread compresses and writes meanwhile."""
    done = journal.finished()
    watcher.begin(scene, plan, len(done) * len(plan.cols.starts))
    work = Work(scene.source, model, plan, request.settings, request.products, request.pace)
    runs = _consecutive([k for k in range(plan.strips) if k not in done])
    writing: Future[None] | None = None
    with (
        ThreadPoolExecutor(1, thread_name_prefix="crisp-write") as writer,
        contextlib.closing(engine.bands(work, runs, watcher.tile_done)) as bands,
    ):
        for band in _giving_up(bands, journal):
            if writing is not None:
                writing.result()  # one band at a time: wide ones are large
            writing = writer.submit(journal.write, band)
        if writing is not None:
            writing.result()


def _giving_up(bands: Iterator[Band], journal: Journal) -> Iterator[Band]:
    """What fails to be read or evaluated would fail again: nothing is kept to resume from."""
    try:
        yield from bands
    except UserError:
        journal.give_up()
        raise


def _make_files(
    scene: Scene, target: Path, journal: Journal, legend: Legend, request: Request, watcher: Watcher
) -> None:
    """Write maps and polygons aside; `moves.json` then says that all are complete and where they go."""
    memory.give_back()
    strips = range(journal.plan.strips)
    watcher.say(f"writing {target}")
    moves, areas = write_maps(map(journal.read, strips), journal.folder, target, scene.grid, legend, request.maps)
    if request.polygons is not None:
        path = request.polygons.path(target)
        memory.give_back()
        watcher.say(f"writing {path}")
        rows = _rows_of(journal)
        aside, _ = write_polygons(rows, path, scene.grid, legend.style, request.polygons)
        moves.insert(0, (aside, path))
    result = Result(
        scene.path, tuple(str(path) for _, path in moves), scene.grid.area_unit, areas.table(legend.classes)
    )
    write_json(
        journal.moves,
        {"moves": [[os.path.abspath(a), os.path.abspath(b)] for a, b in moves], "result": config.to_dict(result)},
    )


def _rows_of(journal: Journal) -> Callable[[], Iterator[MapRows]]:
    def rows() -> Iterator[MapRows]:
        for strip in range(journal.plan.strips):
            band = journal.read_without_probabilities(strip)
            yield from in_parts(MapRows(band.top, band.classes, band.confidence))

    return rows


def _move_into_place(journal: Journal) -> Result:
    finished = json.loads(journal.moves.read_text(encoding="utf-8"))
    for made, path in finished["moves"]:
        if os.path.exists(made):  # otherwise it was moved before the run was killed
            with open(made, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(made, path)
    journal.remove()
    return config.build(Result, finished["result"])


def _consecutive(strips: Sequence[int]) -> list[range]:
    """Runs of neighbouring strips."""
    runs: list[range] = []
    for strip in strips:
        if runs and runs[-1].stop == strip:
            runs[-1] = range(runs[-1].start, strip + 1)
        else:
            runs.append(range(strip, strip + 1))
    return runs
