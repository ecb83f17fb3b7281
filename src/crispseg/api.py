"""What the commands do, as functions: `crispseg.train`, `crispseg.evaluate`, `crispseg.predict`.

Models, data and configs are given as on the command line: by name or by path. A mistake raises `crispseg.UserError`
with the sentence that the command would print.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crispseg.config import check_arguments
from crispseg.errors import UserError

if TYPE_CHECKING:
    from crispseg.data.folder import Folder
    from crispseg.evaluate import Evaluation
    from crispseg.evaluate.opening import Opened
    from crispseg.evaluate.run import Progress
    from crispseg.models.base import SegmentationModel
    from crispseg.predict.scene import Result as MapResult
    from crispseg.predict.scene import Watcher
    from crispseg.train.config import TrainConfig
    from crispseg.train.finish import Result as TrainResult
    from crispseg.train.track import Tracker

StrPath = str | os.PathLike[str]


def train(
    source: StrPath | TrainConfig | None = None,
    /,
    *,
    resume: StrPath | None = None,
    trackers: Iterable[Tracker] = (),
    quiet: bool = False,
    **settings: Any,
) -> TrainResult:
    """Train a model and save it, as `crisp train` does.

        run = crispseg.train("my_folder", model="crisp_nano", schedule={"steps": 500}, seed=1)
        run = crispseg.train("potsdam", data="data/potsdam", **{"optimizer.lr": 3e-4})
        model = crispseg.load(run.weights)

    Args:
        source: A data folder with `images/` and `masks/`, the name of a config (`crisp configs` lists them), a YAML
            file, or a `TrainConfig`. None: everything is in `settings`, which must then have `data`.
        resume: The folder of a run to go on with, instead of a new one. Only settings of the machine may stand beside.
        trackers: Objects that are told of every record of the log, such as your own subclass of
            `crispseg.train.track.Tracker`. What one of them raises ends the run.
        quiet: Show no progress.
        settings: Keys of the config; `crisp configs default` lists them with their meaning. Groups are mappings
            (`optimizer={"lr": 1e-3}`) or dotted names; `data="folder"` and `model="name"` are short forms.

    Returns:
        How the run ended: `out` (the run's folder), `weights` (the best model's folder), `scores` (of the best weights
            on the validation images, as fractions), `finished` (False when a signal or `max_minutes` stopped it; then
            `resume=run.out` goes on).
    """
    check_arguments(train, locals())
    from crispseg.train import loop
    from crispseg.train.track import check_trackers

    trackers = check_trackers(trackers)
    if resume is not None:
        if source is not None:
            raise UserError(f"resume takes the config of {os.fspath(resume)}; leave the config out")
        return loop.resume(Path(resume), [f"{key}={value}" for key, value in settings.items()], trackers, quiet=quiet)
    return loop.train(_train_config(source, settings), trackers, quiet=quiet)


def evaluate(
    model: SegmentationModel | StrPath,
    data: Folder | StrPath,
    *,
    split: str | None = None,
    protocol: str | None = None,
    classes: StrPath | None = None,
    split_file: StrPath | None = None,
    out: StrPath | None = None,
    tile: int | None = None,
    overlap: int | None = None,
    tta: str = "none",
    scales: Sequence[float] = (1.0,),
    tolerance: str = "3px",
    precision: str = "float32",
    batch_size: int | None = None,
    worst: int = 12,
    device: str | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Score a model on labelled images, as `crisp eval` does.

        evaluation = crispseg.evaluate("runs/my_folder-crisp_nano-1", "my_folder", out="report")
        evaluation.headline["mIoU"], evaluation.scores.iou

    Args:
        model: A model, the folder of a saved one or of a training run (its best weights), or a shipped model's name.
        data: A folder with `images/` and `masks/`, or one that `crispseg.data.open_folder` has opened.
        split: `train`, `val` or `test`; None: the one that the protocol is scored on.
        protocol: A named protocol such as `potsdam/paper5`; None: that of the model's run if it was trained on this
            data, else the folder's own.
        classes: The class table: a file, or a known set's name.
        split_file: A `split.csv` that is not in the folder.
        out: A new folder for the report (scores, pictures, one HTML page); None: nothing is written.
        tile: Side of the windows in pixels, 0 for whole images; None: as the protocol says.
        overlap: Least overlap of the windows in pixels; None: as the protocol says.
        tta: Averaging over views of the image: `none`, `flip` (4 views) or `d4` (8).
        scales: Averaging over sizes of the image, such as `(0.75, 1, 1.25)`.
        tolerance: How far a boundary may be off: `3px`, or `0.5m` where the data has a scale.
        precision: `float32` or `bfloat16`.
        batch_size: Windows evaluated together; None: as many as fit into memory.
        worst: Windows kept as pictures for the report.
        device: `cpu`, `cuda`, `cuda:1`; None: an accelerator if there is one.
        progress: Is told of every window.

    Returns:
        The counts of every image. `headline` has mIoU, mF1, OA, boundary scores and calibration as fractions; `scores`
            those of each class; `conditions.line` says what they were made under.
    """
    check_arguments(evaluate, locals())
    from crispseg.data.folder import Folder
    from crispseg.evaluate import Settings, write_report
    from crispseg.evaluate.opening import open_data, training_notes
    from crispseg.evaluate.report import check_free
    from crispseg.evaluate.run import evaluate as run

    opened = _open_model(model)
    if not isinstance(data, Folder):
        data = open_data(os.fspath(data), [opened], protocol, _as_text(classes), _as_text(split_file))
    if out is not None:
        check_free(out)
    settings = Settings(tile, overlap, tta, tuple(scales), precision, tolerance, batch_size, worst)
    evaluation = run(
        opened.model,
        data,
        split,
        settings=settings,
        device=device,
        source=opened.source,
        notes=training_notes(opened, data, split),
        progress=progress,
    )
    if out is not None:
        write_report(evaluation, out)
    return evaluation


def predict(
    scenes: StrPath | Sequence[StrPath],
    output: StrPath,
    model: SegmentationModel | StrPath | None = None,
    *,
    bands: Sequence[int | str] = (),
    resolution: float | str | None = None,
    pixel_size: float | None = None,
    require_crs: bool = False,
    nodata: float | None = None,
    any_values: bool = False,
    tile: int = 1024,
    overlap: int | None = None,
    exact: bool = False,
    tta: str = "none",
    precision: str = "auto",
    device: str | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    engine: str = "local",
    existing: str = "refuse",
    confidence: bool = False,
    probabilities: bool = False,
    boundaries: bool = False,
    polygons: StrPath | None = None,
    min_area: float = 0.0,
    simplify: float = 0.0,
    compress: str = "deflate",
    asset: str = "",
    stac: bool = False,
    scratch: StrPath | None = None,
    watcher: Watcher | None = None,
) -> tuple[MapResult, ...]:
    """Make georeferenced class maps of whole scenes, in bounded memory, as `crisp predict` does.

        (city,) = crispseg.predict("city.tif", "map.tif", "crisp_nano_aerial", polygons="map.gpkg")
        city.files, city.classes

    For an image that fits into memory, `crispseg.segment` gives its class map as an array.

    Args:
        scenes: Rasters, VRTs, folders of rasters or STAC files: one or several; also `s3://`, `gs://`, `az://`, `https://`.
        output: A `.tif` for one scene, else a folder; also `s3://`, `gs://`, `az://`.
        model: A model, the folder of a saved one or of a training run (its best weights), or a shipped model's name;
            None: `crisp_nano_aerial`, with a warning that says what it was trained on.
        bands: The scene's bands for the model, by number from 1 or by name; empty: chosen by what the file says.
        resolution: Resample to so many metres per pixel, or `"model"` for the model's own, `"scene"` for the scene's;
            None: the scene's where the model has seen such pixels, else the nearest that it has.
        pixel_size: What a pixel measures in metres, where a scene has no reference system that tells it.
        require_crs: Refuse scenes without a reference system.
        nodata: A number that stands for no data, where a scene does not say so.
        any_values: Take pixels that cannot be of the kind the model was trained on (16 bit for an 8-bit model).
        tile: Side of a tile in pixels.
        overlap: Least overlap of tiles in pixels; None: a quarter of a tile.
        exact: Run the scene as a single image, without tiles.
        tta: Averaging over views: `none`, `flip` or `d4`.
        precision: `float32`, `bfloat16`, or `auto`: bfloat16 where model and device are made for it.
        device: `cpu`, `cuda`, `cuda:1`; None: an accelerator if there is one.
        batch_size: Tiles evaluated together; None: as many as fit into memory.
        workers: Threads that read; None: chosen for the machine.
        engine: `local`, or `ray` for several machines.
        existing: When an output is there already: `refuse`, `skip` or `replace`.
        confidence: Also write `OUT_confidence.tif`.
        probabilities: Also write `OUT_probabilities.tif`, a band per class.
        boundaries: Also write `OUT_boundaries.tif`, 1 where classes meet.
        polygons: Also write a `.gpkg`, `.geojson`, `.fgb` or `.parquet`; just `gpkg` puts one beside each map.
        min_area: Merge regions smaller than so many square metres into their neighbours (polygons only).
        simplify: Simplify outlines by so many metres (polygons only).
        compress: `deflate`, `zstd` or `lzw`.
        asset: Which asset of STAC items to read.
        stac: Also write a STAC item beside each map; scenes from STAC files always get one.
        scratch: The folder in which outputs of object stores are made.
        watcher: Is told how each scene comes along; None: what you must know comes as a Python warning.

    Returns:
        One result per scene that was mapped: its `files` and the ground that each class covers. A scene that fails does
            not stop the others; when all are done, a `UserError` names those that failed.
    """
    check_arguments(predict, locals())
    from crispseg.geo.maps import MapChoice
    from crispseg.geo.polygons import PolygonChoice
    from crispseg.geo.scenes import Reading
    from crispseg.predict.bands import Pace
    from crispseg.predict.batch import predict_scenes
    from crispseg.predict.default import open_default
    from crispseg.predict.plan import check_tile
    from crispseg.predict.scene import Request, Warner
    from crispseg.predict.work import Settings

    check_tile(tile)
    if polygons is None and (min_area or simplify):
        raise UserError("min_area and simplify shape the polygons; name their file with polygons")
    paths = _paths(scenes)
    request = Request(
        Settings(tile, overlap, tta, precision, device, exact),
        Reading(tuple(map(str, bands)), resolution, require_crs, (), any_values, pixel_size, nodata),
        MapChoice(confidence, probabilities, boundaries, compress),
        PolygonChoice(os.fspath(polygons), min_area, simplify) if polygons else None,
        Pace(batch_size, workers),
        stac,
    )
    watcher = watcher or Warner()
    if model is None:
        model, told = open_default()
        watcher.warn(told)
    report = predict_scenes(
        paths,
        os.fspath(output),
        _open_model(model).model,
        request,
        engine=engine,
        existing=existing,
        watcher=watcher,
        scratch=_as_text(scratch),
        asset=asset,
    )
    if report.failures:
        raise UserError("; ".join(f"{scene}: {reason}" for scene, reason in report.failures))
    return report.results


def _as_text(path: StrPath | None) -> str | None:
    return None if path is None else os.fspath(path)


def _paths(scenes: StrPath | Iterable[StrPath]) -> list[str]:
    named = [scenes] if isinstance(scenes, str | os.PathLike) else list(scenes)
    if not named:
        raise UserError("scenes is an empty list: name at least one")
    for scene in named:
        if not isinstance(scene, str | os.PathLike):
            raise UserError(f"scenes must be paths, not {type(scene).__name__}; crispseg.segment takes an array")
    return [os.fspath(scene) for scene in named]


def _train_config(source: StrPath | TrainConfig | None, settings: Mapping[str, Any]) -> TrainConfig:
    from crispseg import config
    from crispseg.configs import find_config_or_folder
    from crispseg.train.config import TrainConfig, config_from

    values: dict[str, Any] = {}
    if isinstance(source, TrainConfig):
        values = config.to_dict(source)
    elif source is not None:
        found = find_config_or_folder(os.fspath(source))
        values = {"data": str(found)} if found.is_dir() else config.read_yaml(found)
    return config_from(values, settings=settings)


def _open_model(model: SegmentationModel | StrPath) -> Opened:
    from crispseg.evaluate.opening import Opened, open_model
    from crispseg.models.base import SegmentationModel

    return Opened(model, model.name, None) if isinstance(model, SegmentationModel) else open_model(model)
