"""Make georeferenced class maps of whole scenes, in bounded memory.

    crisp predict scene.tif -o map.tif --model MODEL
    crisp predict folder/ more.tif -o maps/ --model MODEL --polygons gpkg --confidence

MODEL is the folder of a saved model or of a training run, or the name of one that comes with crispseg; without it,
one of those is used.
A run that was interrupted or killed goes on where it stopped when the same command is given again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from crispseg.cli.existing import add_existing

if TYPE_CHECKING:
    from crispseg.cli.printer import Printer
    from crispseg.geo.scenes import Scene
    from crispseg.models.base import SegmentationModel
    from crispseg.predict.batch import Report
    from crispseg.predict.scene import Request, Result


_LITTLE = 128  # px


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scenes",
        nargs="+",
        metavar="SCENE",
        help="rasters, folders, STAC .json; also s3://, https://",
    )
    parser.add_argument(
        *("-o", "--output", "--out"),
        required=True,
        metavar="OUT",
        help="a .tif for one scene, else a folder; or s3://...",
    )
    parser.add_argument("-m", "--model", help="a saved model's or a run's folder, or a shipped model's name")
    parser.add_argument("--dry-run", action="store_true", help="only say what is read, in how many tiles, how long")
    add_existing(parser)
    _add_reading(parser.add_argument_group("reading"))
    _add_model(parser.add_argument_group("evaluating"))
    _add_output(parser.add_argument_group("writing"))


def _add_reading(group: Any) -> None:
    group.add_argument(
        "--bands", default="", metavar="LIST", help="bands for the model, by number from 1 or name, e.g. 4,1,2"
    )
    group.add_argument(
        "--resolution",
        metavar="M",
        help="resample to so many metres per pixel, to the 'model's own, or leave the 'scene' as it is "
        "(left where the model has seen such pixels, else the nearest that it has)",
    )
    group.add_argument(
        "--pixel-size", type=float, metavar="M", help="what a pixel measures, where a scene has no reference system"
    )
    group.add_argument(
        "--nodata", type=float, metavar="VALUE", help="a number that stands for no data, where a scene does not say so"
    )
    group.add_argument(
        "--any-values", action="store_true", help="take pixels unlike those the model was trained on (16 for 8 bit)"
    )
    group.add_argument("--asset", default="", metavar="KEY", help="which asset of STAC items to read")
    group.add_argument("--require-crs", action="store_true", help="refuse scenes without a reference system")
    group.add_argument(
        "--allow-drivers", default="", metavar="LIST", help="GDAL drivers to read with beside the usual ones, or all"
    )


def _add_model(group: Any) -> None:
    group.add_argument("--tile", type=int, default=1024, help="side of a tile in pixels (%(default)s)")
    group.add_argument("--overlap", type=int, help="least overlap of tiles in pixels (a quarter of a tile)")
    group.add_argument("--exact", action="store_true", help="run the scene as one image, without tiles, in float32")
    group.add_argument(
        "--tta", default="none", choices=("none", "flip", "d4"), help="average over flips, or flips and turns"
    )
    group.add_argument(
        "--precision",
        default="auto",
        choices=("auto", "float32", "bfloat16"),
        help="auto: bfloat16 where model and device are made for it (%(default)s)",
    )
    group.add_argument("--device", help="cpu, cuda, cuda:1 ... (an accelerator if there is one)")
    group.add_argument("--batch-size", type=int, help="tiles evaluated together (as many as fit in memory)")
    group.add_argument("--workers", type=int, help="threads that read (2; 6 beside a GPU)")
    group.add_argument("--engine", default="local", choices=("local", "ray"), help="where tiles are evaluated")


def _add_output(group: Any) -> None:
    group.add_argument("--confidence", action="store_true", help="also OUT_confidence.tif, 0 to 254")
    group.add_argument("--probabilities", action="store_true", help="also OUT_probabilities.tif, a band per class")
    group.add_argument("--boundaries", action="store_true", help="also OUT_boundaries.tif, 1 where classes meet")
    group.add_argument(
        "--polygons", metavar="FILE", help="a .gpkg, .geojson, .fgb or .parquet; or just gpkg to put it beside each map"
    )
    group.add_argument(
        "--min-area", type=float, default=0.0, metavar="M2", help="merge smaller regions into their neighbours"
    )
    group.add_argument(
        "--simplify", type=float, default=0.0, metavar="M", help="simplify outlines; shared edges stay shared"
    )
    group.add_argument("--stac", action="store_true", help="a STAC item beside each map (STAC scenes always get one)")
    group.add_argument("--scratch", metavar="DIR", help="where remote outputs are made (a folder of the user's cache)")
    group.add_argument(
        "--compress", default="deflate", choices=("deflate", "zstd", "lzw"), help="how maps are packed (deflate)"
    )


def run(args: argparse.Namespace) -> int:
    from crispseg.cli.printer import Printer

    out = Printer.of(args)
    request = make_request(args)
    if args.tile < _LITTLE and not args.exact:
        out.warn(f"tiles of {args.tile} px show the model little around each pixel; 512 and more make better maps")
    model = _open_model(args.model, out)
    if args.dry_run:
        return _dry_run(args, model, request, out)
    from crispseg.predict.batch import predict_scenes
    from crispseg.predict.progress import Bar

    try:
        with Bar(silent=out.quiet, as_one=args.exact) as bar:
            report = predict_scenes(
                args.scenes,
                args.output,
                model,
                request,
                engine=args.engine,
                existing=args.existing,
                watcher=bar,
                scratch=args.scratch,
                asset=args.asset,
            )
    except KeyboardInterrupt:
        out.warn("what is finished is kept; the same command goes on where it stopped")
        raise
    return _tell(report, out)


def _open_model(word: str | None, out: Printer) -> SegmentationModel:
    from crispseg.models.folder import load
    from crispseg.predict.default import open_default

    if word is not None:
        return load(word)
    model, told = open_default()
    out.warn(told)
    return model


def make_request(args: argparse.Namespace) -> Request:
    from crispseg.errors import UserError
    from crispseg.geo.maps import MapChoice
    from crispseg.geo.polygons import PolygonChoice
    from crispseg.geo.scenes import Reading
    from crispseg.predict.bands import Pace
    from crispseg.predict.plan import check_tile
    from crispseg.predict.scene import Request
    from crispseg.predict.work import Settings

    check_tile(args.tile)
    if args.polygons is None and (args.min_area or args.simplify):
        raise UserError("--min-area and --simplify shape the polygons; name their file with --polygons")
    return Request(
        Settings(args.tile, args.overlap, args.tta, args.precision, args.device, args.exact),
        Reading(
            _words(args.bands),
            _resolution(args.resolution),
            args.require_crs,
            _words(args.allow_drivers),
            args.any_values,
            args.pixel_size,
            args.nodata,
        ),
        MapChoice(args.confidence, args.probabilities, args.boundaries, args.compress),
        PolygonChoice(args.polygons, args.min_area, args.simplify) if args.polygons else None,
        Pace(args.batch_size, args.workers),
        args.stac,
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _resolution(word: str | None) -> float | str | None:
    from crispseg.errors import UserError

    if word is None or word in ("model", "scene"):
        return word
    try:
        return float(word)
    except ValueError:
        raise UserError(f"--resolution is a number of metres, 'model' or 'scene', not {word!r}") from None


def _dry_run(args: argparse.Namespace, model: SegmentationModel, request: Request, out: Printer) -> int:
    from crispseg.cli.printer import plain
    from crispseg.errors import UserError
    from crispseg.geo.landing import find_landing
    from crispseg.geo.scenes import find_scenes
    from crispseg.predict.batch import choose_targets

    estimate = _plan_as_one_image if args.exact else _plan_in_tiles
    values, texts, failures = [], [], []
    _, made_as = find_landing(args.output, args.scratch)
    for scene in (found.path for found in choose_targets(find_scenes(args.scenes, args.asset), made_as, request)):
        try:
            opened, plan, text = estimate(scene, model, request)
            values.append({"scene": scene, **plain(plan), "read": opened.told, "warnings": opened.warnings})
            texts += [opened.told, text]
            for warning in opened.warnings:
                out.warn(warning)
        except UserError as error:
            failures.append((scene, str(error)))
    out.result({"plans": values, "failures": _failures(failures)}, *texts)
    return _tell_failures(failures, out)


def _plan_in_tiles(path: str, model: SegmentationModel, request: Request) -> tuple[Scene, Any, str]:
    from crispseg.predict.estimate import estimate_scene

    scene, plan = estimate_scene(path, model, request)
    memory = f"{plan.buffers / 2**20:.0f} MiB for blending and buffers"
    if plan.evaluation > 2**19:  # half of the unit it is told in
        memory += f", {plan.evaluation / 2**20:.0f} MiB in the model per tile evaluated at a time"
    tiles = f"{plan.tiles} tile{'s' * (plan.tiles > 1)} of {plan.tile[1]} x {plan.tile[0]} px"
    return scene, plan, f"{path}: {plan.width} x {plan.height} px, {tiles}; {memory}; {_about(plan.seconds)}"


def _plan_as_one_image(path: str, model: SegmentationModel, request: Request) -> tuple[Scene, Any, str]:
    from crispseg.predict.estimate import estimate_exact

    scene, plan = estimate_exact(path, model, request)
    size = f"{scene.grid.width} x {scene.grid.height} px as one image"
    memory, disk = (f"{count / 2**20:.0f} MiB" for count in (plan.memory_bytes, plan.disk_bytes))
    text = f"{path}: {size}; {memory} beside the model, {disk} of temporary files; {_about(plan.seconds)}"
    return scene, plan, text


def _about(seconds: float) -> str:
    return f"about {duration(seconds)}" if round(seconds) else duration(seconds)


def duration(seconds: float) -> str:
    """`95` as `1 min 35 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    told = [f"{value} {unit}" for value, unit in parts if value]
    return " ".join(told[:2]) or "less than a second"


def _tell(report: Report, out: Printer) -> int:
    texts = ["\n".join(_summary(result)) for result in report.results]
    texts += [f"{path}: there already, skipped" for path in report.skipped]
    values = {"maps": report.results, "skipped": report.skipped, "failures": _failures(report.failures)}
    out.result(values, *texts)
    return _tell_failures(report.failures, out)


def _failures(failures: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"scene": scene, "reason": reason} for scene, reason in failures]


def _summary(result: Result) -> list[str]:
    width = max(len(row["class"]) for row in result.classes)
    lines = [f"{result.scene} -> {', '.join(result.files)}"]
    for row in result.classes:
        area = f"{row['area']:,.0f} {result.unit}"
        lines.append(f"  {row['id']:>3}  {row['class']:<{width}}  {area:>20}  {100 * row['share']:5.1f} %")
    return lines


def _tell_failures(failures: Sequence[tuple[str, str]], out: Printer) -> int:
    if not failures:
        return 0
    out.warn(f"crisp: {len(failures)} scene{'s' * (len(failures) > 1)} failed:")
    for scene, reason in failures:
        out.warn(f"  {scene}: {reason}")
    return 1
