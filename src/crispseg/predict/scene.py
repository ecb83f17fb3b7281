"""One scene from its file to its finished maps: plan, journal, engine, maps, and last the renaming."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from crispseg import __version__, config, memory
from crispseg.errors import UserError
from crispseg.files import write_text
from crispseg.geo import store
from crispseg.geo.crs_roundtrip import check_geotiff_keeps
from crispseg.geo.landing import Landing, check_room
from crispseg.geo.layers import check_layer
from crispseg.geo.lonlat import check_on_earth
from crispseg.geo.maps import Legend, MapChoice, style_paths, write_maps
from crispseg.geo.notes import stamps_of_pixels
from crispseg.geo.polygons import PolygonChoice, polygon_file, write_polygons
from crispseg.geo.regions import MapRows, in_parts
from crispseg.geo.scenes import Reading, Scene, open_scene
from crispseg.geo.stac.read import SourceItem
from crispseg.geo.stac.write import Made, item_path, map_item
from crispseg.models.base import SegmentationModel
from crispseg.models.device import find_device
from crispseg.outputs import Workplace, claiming, is_unfinished, refuse_inputs, there, work_folder
from crispseg.predict.bands import Pace
from crispseg.predict.engines import Engine
from crispseg.predict.journal import MOVES, Journal
from crispseg.predict.plan import ScenePlan, make_plan
from crispseg.predict.work import Settings, Work
from crispseg.raster.products import Band, Products

# Outputs that another run might make under a name of its own; the class map is the journal's.
_CLAIMED = ("polygons", "confidence", "probabilities", "boundaries")


@dataclasses.dataclass(frozen=True)
class Request:
    """What to make of every scene, and how."""

    settings: Settings = dataclasses.field(default_factory=Settings)
    reading: Reading = dataclasses.field(default_factory=Reading)
    maps: MapChoice = dataclasses.field(default_factory=MapChoice)
    polygons: PolygonChoice | None = None
    pace: Pace = dataclasses.field(default_factory=Pace)
    stac: bool = False  # a STAC item beside each map

    @property
    def products(self) -> Products:
        return Products(self.maps.confidence or self.polygons is not None, self.maps.probabilities)

    def outputs(self, target: Path) -> dict[str, Path]:
        """Every file that is made of a scene, by what it is; the class map last."""
        polygons = {} if self.polygons is None else {"polygons": self.polygons.path(target)}
        item = {"stac": item_path(target)} if self.stac else {}
        return {**polygons, **style_paths(target), **item, **self.maps.paths(target)}


@dataclasses.dataclass(frozen=True)
class Result:
    """The files made from a scene and the ground each class covers."""

    scene: str
    files: tuple[str, ...]
    unit: str  # of the areas: m2 or px
    classes: tuple[dict[str, Any], ...]  # id, class, pixels, area, share
    read: str = ""  # which bands, at which scale


class Watcher:
    """Is told how a scene comes along; the command draws its progress bar with it."""

    def begin(self, scene: Scene, plan: ScenePlan, tiles_done: int) -> None:
        """A scene's tiles begin; some may be done from an earlier run."""

    def tile_done(self) -> None:
        """One more tile is evaluated."""

    def say(self, what: str) -> None:
        """A remark."""

    def warn(self, what: str) -> None:
        """Something the user must know."""
        self.say(what)


class Warner(Watcher):
    """For callers who watch nothing: what they must know comes as Python's warnings."""

    def warn(self, what: str) -> None:
        warnings.warn(what, stacklevel=2)


def predict_scene(
    path: str,
    target: Path,
    model: SegmentationModel,
    legend: Legend,
    request: Request,
    engine: Engine,
    watcher: Watcher,
    existing: str = "refuse",
    landing: Landing | None = None,
    item: SourceItem | None = None,
) -> Result:
    """Make the maps of one scene, or go on where a killed run stopped. `target` appears when all is done.

    `existing` says what to do about files of the outputs' names: refuse or replace. `landing` takes finished files to
    where they belong, if that is not on this machine. `item` is the STAC item the scene came from.
    """
    landing = landing or Landing()
    request = dataclasses.replace(request, settings=request.settings.settled(model))
    scene = open_scene(path, model, request.reading)
    try:
        watcher.say(f"{scene.told}; computed in {request.settings.precision}")
        for warning in scene.warnings:
            watcher.warn(warning)
        plan = make_plan(scene.grid.height, scene.grid.width, request.settings.tile, request.settings.overlap)
        outputs = request.outputs(target)
        refuse_inputs(outputs.values(), scene.files)
        _refuse_remote_input(outputs, landing, path)
        _check_writable_as(outputs, scene)
        check_room(target.parent, least_bytes(plan, model, request))
        job = {**_job(scene, legend, model, request, outputs), "item": config.to_dict(item) if item else None}
        journal = Journal(target, job, plan, request.products, model.num_classes)
        try:
            with claiming(path for what, path in outputs.items() if what in _CLAIMED) as places:
                if _finished(journal, places, outputs, landing) is None:
                    landing.check_existing(outputs.values(), "replace" if existing == "replace" else "refuse")
                    _tell_changes(landing.name(target), journal, watcher)
                    _compute_bands(scene, plan, model, request, engine, journal, watcher)
                    _tell_if_changed(scene, job["files"], watcher)
                    _make_files(scene, outputs, places, journal, legend, request, watcher, landing, item)
                return _put_in_place(journal, places, outputs, existing, landing)
        finally:
            journal.release()
    finally:
        scene.source.close()


def _check_writable_as(outputs: Mapping[str, Path], scene: Scene) -> None:
    """What would fail after the last tile fails before the first."""
    check_geotiff_keeps(scene.grid)
    if "polygons" in outputs:
        check_layer(outputs["polygons"], scene.grid)
    if "stac" in outputs and scene.grid.crs:
        check_on_earth(scene.grid)


def least_bytes(plan: ScenePlan, model: SegmentationModel, request: Request) -> int:
    """What the unfinished files of a scene take at least: classes pack well, probabilities hardly."""
    planes = 0.05 + 0.5 * request.products.confidence + 0.5 * model.num_classes * request.products.probabilities
    return round(planes * plan.rows.length * plan.cols.length)


def _refuse_remote_input(outputs: Mapping[str, Path], landing: Landing, scene: str) -> None:
    for path in outputs.values():
        if landing.name(path) == scene:
            raise UserError(f"{scene} would be replaced by its own map; choose another output")


def is_waiting(target: Path) -> bool:
    """Whether a run for `target` was killed while its finished files were being put in place."""
    return (work_folder(target) / MOVES).exists()


def _job(
    scene: Scene, legend: Legend, model: SegmentationModel, request: Request, outputs: Mapping[str, Path]
) -> dict[str, Any]:
    """All that the bytes of the maps depend on; a journal of another job is of no use."""
    wanted = config.to_dict(request)
    del wanted["pace"]
    wanted["settings"]["device"] = find_device(request.settings.device).type
    return {
        "crispseg": __version__,
        "scene": os.path.abspath(scene.path) if os.path.exists(scene.path) else scene.path,
        "files": _stamps(scene),
        "grid": config.to_dict(scene.grid),
        "model": {**config.to_dict(legend), "mean": list(model.info.mean), "std": list(model.info.std)},
        "bands": list(scene.bands),
        "request": wanted,
        "outputs": {what: os.path.abspath(path) for what, path in outputs.items()},
    }


def _stamps(scene: Scene) -> dict[str, str]:
    """They change when the scene's pixels may have."""
    if store.is_remote(scene.path):
        return {scene.path: store.fingerprint(scene.path)}
    return stamps_of_pixels(scene.files)


def _tell_changes(target: str, journal: Journal, watcher: Watcher) -> None:
    if journal.changes:
        what = ", ".join(journal.changes[:5])
        watcher.say(f"{target}: an unfinished run is there, but not of the same job ({what} differs); it starts anew")


def _tell_if_changed(scene: Scene, before: Mapping[str, str], watcher: Watcher) -> None:
    """A file that is still being written reads as black where it is not there yet."""
    if not store.is_remote(scene.path) and _stamps(scene) != before:
        watcher.warn(
            f"{scene.path} has changed since its run began: parts of the map may be of what it was before; when nobody "
            "writes to it, run again with --existing replace"
        )


def _compute_bands(
    scene: Scene,
    plan: ScenePlan,
    model: SegmentationModel,
    request: Request,
    engine: Engine,
    journal: Journal,
    watcher: Watcher,
) -> None:
    """Let the engine make what the journal lacks; a thread compresses and writes meanwhile."""
    from crispseg.predict.estimate import check_memory  # which needs this module

    check_memory(plan, model, request)
    done = journal.finished()
    watcher.begin(scene, plan, len(done) * len(plan.cols.starts))
    work = Work(scene.source, model, plan, request.settings, request.products, request.pace)
    runs = _consecutive([k for k in range(plan.strips) if k not in done])
    writing: Future[None] | None = None
    with (
        ThreadPoolExecutor(1, thread_name_prefix="crisp-write") as writer,
        contextlib.closing(engine.bands(work, runs, watcher.tile_done)) as bands,
    ):
        for band in _giving_up(bands, journal, scene):
            if writing is not None:
                writing.result()  # one band at a time: wide ones are large
            writing = writer.submit(journal.write, band)
        if writing is not None:
            writing.result()


def _giving_up(bands: Iterator[Band], journal: Journal, scene: Scene) -> Iterator[Band]:
    """What fails to be read or evaluated would fail again: nothing is kept to resume from. A network may come back."""
    try:
        yield from bands
    except UserError:
        if not store.is_remote(scene.path):
            journal.give_up()
        raise


def _make_files(
    scene: Scene,
    outputs: Mapping[str, Path],
    places: Mapping[Path, Workplace],
    journal: Journal,
    legend: Legend,
    request: Request,
    watcher: Watcher,
    landing: Landing,
    item: SourceItem | None,
) -> None:
    """Write maps, polygons and the STAC item aside; then note that all are complete."""
    memory.give_back()
    target = outputs["classes"]
    watcher.say(f"writing {landing.name(target)}")
    bands = map(journal.read, range(journal.plan.strips))
    made, areas = write_maps(bands, journal.place, target, scene.grid, legend, request.maps)
    if request.polygons is not None:
        path = outputs["polygons"]
        memory.give_back()
        watcher.say(f"writing {landing.name(path)}")
        made["polygons"] = places[path].making(polygon_file(path))
        write_polygons(_rows_of(journal), made["polygons"], path, scene.grid, legend.style, request.polygons)
    if "stac" in outputs:
        made["stac"] = journal.place.making(outputs["stac"].name)
        write_text(made["stac"], map_item(Made(scene.grid, legend, outputs, scene.path, scene.told, item)))
    table = areas.table(legend.classes)
    files = tuple(landing.name(path) for path in outputs.values())
    result = Result(scene.path, files, scene.grid.area_unit, table, scene.told)
    journal.note_finished(config.to_dict(result), {what: made[what].name for what in outputs})


def _rows_of(journal: Journal) -> Callable[[], Iterator[MapRows]]:
    def rows() -> Iterator[MapRows]:
        for strip in range(journal.plan.strips):
            band = journal.read_without_probabilities(strip)
            yield from in_parts(MapRows(band.top, band.classes, band.confidence))

    return rows


Finished = list[tuple[Path, Path]]  # a file in its workplace, and the name it shall have


def _finished(
    journal: Journal, places: Mapping[Path, Workplace], outputs: Mapping[str, Path], landing: Landing
) -> tuple[Finished, Result] | None:
    """What only waits to be put in place; None while something is to be made.

    Only names are taken from the journal's note, so a note of anybody's moves nothing but what is in our folders.
    """
    noted = journal.finished_files()
    if noted is None or list(noted[0]) != list(outputs):
        return None
    made, values = noted
    if not all(is_unfinished(Path(name).name) for name in made.values()):  # not a note of ours
        return None
    folders = {
        what: places[path].folder if path in places and what == "polygons" else journal.folder
        for what, path in outputs.items()
    }
    files = [(folders[what] / Path(made[what]).name, path) for what, path in outputs.items()]
    if not all(there(file) or landing.there(path) for file, path in files):
        return None
    try:
        return files, config.build(Result, values)
    except UserError:
        return None


def _put_in_place(
    journal: Journal, places: Mapping[Path, Workplace], outputs: Mapping[str, Path], existing: str, landing: Landing
) -> Result:
    """The class map last: when it is there, all are."""
    finished = _finished(journal, places, outputs, landing)
    assert finished is not None
    files, result = finished
    for file, path in files:
        landing.put(file, path, existing)
    for place in places.values():
        place.remove()
    journal.remove()
    landing.tidy()
    return result


def _consecutive(strips: Sequence[int]) -> list[range]:
    """Runs of neighbouring strips."""
    runs: list[range] = []
    for strip in strips:
        if runs and runs[-1].stop == strip:
            runs[-1] = range(runs[-1].start, strip + 1)
        else:
            runs.append(range(strip, strip + 1))
    return runs
