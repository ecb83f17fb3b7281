"""Make one checked folder that training and evaluation read: of a known data set, or of polygons you have drawn.

  crisp prepare potsdam --source ARCHIVES --out data/potsdam
  crisp prepare vector --image ortho.tif --labels labels.gpkg --field class --out data/mine

ARCHIVES is a folder with the zip files as they are distributed, or unpacked, or already cut in the mmsegmentation
or GeoSeg layout. Everything is checked before anything is written; an interrupted run continues when started again.
Your own images need no preparing: put them into images/ and masks/.
"""

from __future__ import annotations

import argparse
import functools
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from crispseg.cli.existing import add_existing
from crispseg.errors import UserError, unknown

VECTOR = "vector"
LABELS = ("both", "full", "eroded")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from crispseg.data.prepare import DATASETS

    parser.add_argument("dataset", choices=(*DATASETS, VECTOR), help="a known set, or vector for drawn polygons")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--labels", default="both", help="vector: the file of polygons; else both, full or eroded ISPRS labels (both)"
    )
    add_existing(parser, ("refuse", "replace"))
    _add_known(parser.add_argument_group("known data sets"))
    _add_vector(parser.add_argument_group("drawn polygons (vector)"))


def _add_known(group: Any) -> None:
    group.add_argument("--source", help="folder (or zip) with the archives or their unpacked files")
    group.add_argument("--allow-missing", action="store_true", help="prepare what is there when tiles are missing")
    group.add_argument(
        "--unknown-colours",
        choices=("error", "ignore"),
        default="error",
        help="what to do with label colours that are no class (default: stop; never guess)",
    )
    group.add_argument(
        "--colour-tolerance",
        type=int,
        default=0,
        metavar="N",
        help="take a label colour for a class colour that differs by at most N in every channel (default: 0, exact)",
    )
    group.add_argument("--images", default="auto", choices=("auto", "rgb", "irrg", "rgbir"), help="which of Potsdam's")
    group.add_argument("--check", action="store_true", help="only check; write nothing")


def _add_vector(group: Any) -> None:
    group.add_argument("--image", nargs="+", metavar="FILE", help="orthophotos the polygons were drawn on")
    group.add_argument("--field", help="the field that holds the classes")
    group.add_argument("--layer", default="", help="which layer of the file, where it has several")
    group.add_argument("--labels-crs", default="", metavar="CRS", help="for polygons that do not say theirs: EPSG:4326")
    group.add_argument(
        "--overlaps",
        default="error",
        metavar="WHICH",
        help="where polygons of two classes overlap: last, first, smallest, or a field of numbers whose largest lies "
        "on top (default: error)",
    )
    group.add_argument("--aoi", default="", metavar="FILE", help="polygons of the area of interest; outside is ignored")
    group.add_argument("--aoi-layer", default="", metavar="LAYER", help="which layer of that file")
    group.add_argument("--background", default="", metavar="NAME", help="class of what no polygon covers (ignored)")
    group.add_argument("--classes", default="", metavar="FILE", help="a classes.csv instead of the field's values")
    group.add_argument("--bands", default="", metavar="LIST", help="bands by number from 1 or name, e.g. 4,1,2 (all)")
    group.add_argument("--chip", type=int, default=1024, metavar="PX", help="side of chips (%(default)s); 0: whole")


def run(args: argparse.Namespace) -> int:
    if args.dataset == VECTOR:
        _refuse(args, _add_known, "the archives of known data sets")
        return _prepare_vector(args)
    _refuse(args, _add_vector, "drawn polygons (vector)")
    return _prepare_known(args)


def _refuse(args: argparse.Namespace, add_others: Callable[[Any], None], what_for: str) -> None:
    """Refuse options that the other kind of preparing has: passed over, `--check` would write."""
    others = argparse.ArgumentParser()
    add_others(others)
    for name, default in vars(others.parse_args([])).items():
        if getattr(args, name) != default:
            raise UserError(f"--{name.replace('_', '-')} is for {what_for}, not for {args.dataset}; leave it out")


def _prepare_known(args: argparse.Namespace) -> int:
    from crispseg.cli.printer import Printer
    from crispseg.data.prepare import Choices, check, make_plan, prepare

    if args.source is None:
        raise UserError(f"crisp prepare {args.dataset} needs --source, the folder with its archives")
    if args.labels not in LABELS:
        raise unknown("label variant", args.labels, LABELS)
    choices = Choices(args.labels, args.unknown_colours, args.colour_tolerance, args.allow_missing, args.images)
    out = Printer.of(args)
    progress = functools.partial(_progress, out.quiet)
    plan = make_plan(args.dataset, args.source, choices)
    check(plan, progress)
    for remark in plan.remarks:
        out.say(f"note: {remark}")
    found = f"{args.dataset}: {len(plan.items)} images in the {plan.layout} layout, all there and readable"
    if args.check:
        out.result({"dataset": args.dataset, "layout": plan.layout, "images": len(plan.items)}, found)
        return 0
    out.say(found)
    try:
        told = len(plan.remarks)
        manifest = prepare(plan, args.out, choices, progress, args.existing)
    except KeyboardInterrupt:
        out.warn("interrupted; what is finished is kept, the same command continues")
        raise
    for remark in plan.remarks[told:]:
        out.say(f"note: {remark}")
    values = {"out": args.out, **{key: manifest[key] for key in ("protocols", "classes", "labels", "histogram")}}
    out.result({**values, "images": len(manifest["images"])}, _summary(args.out, manifest))
    return 0


def _prepare_vector(args: argparse.Namespace) -> int:
    from crispseg.cli.printer import Printer
    from crispseg.geo.labels.vector import VectorChoice, prepare_vector

    given = {"--image": args.image, "--labels": args.labels not in LABELS, "--field": args.field}
    missing = [word for word, there in given.items() if not there]
    if missing:
        raise UserError(
            f"crisp prepare vector needs {', '.join(missing)}: --image ortho.tif --labels labels.gpkg --field class"
        )
    choice = VectorChoice(
        labels=args.labels,
        field=args.field,
        layer=args.layer,
        labels_crs=args.labels_crs,
        overlaps=args.overlaps,
        interest=args.aoi,
        interest_layer=args.aoi_layer,
        background=args.background,
        classes=args.classes,
        bands=tuple(word.strip() for word in args.bands.split(",") if word.strip()),
        chip=args.chip,
    )
    out = Printer.of(args)
    with _bar(out.quiet) as bar:
        task = bar.add_task("labels", total=None)
        manifest = prepare_vector(
            args.image,
            choice,
            args.out,
            out.warn,
            lambda done, total: bar.update(task, completed=done, total=total),
            args.existing,
        )
    keys = ("classes", "bands", "resolution", "histogram")
    values = {"out": args.out, **{key: manifest[key] for key in keys}, "images": len(manifest["images"])}
    out.result(values, _vector_summary(args.out, manifest))
    return 0


def _bar(quiet: bool) -> Any:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, disable=quiet or not console.is_terminal, transient=True)


def _vector_summary(out: str, manifest: dict[str, Any]) -> str:
    from crispseg.geo.labels.place import PICTURE

    pixels = sum(entry["width"] * entry["height"] for entry in manifest["images"])
    counts = manifest["histogram"]["full"]
    names = [row["name"] for row in manifest["classes"] if not row.get("ignore")]
    size = "pixels of unknown size" if manifest["resolution"] is None else f"pixels of {manifest['resolution']:.3g} m"
    lines = [f"wrote {len(manifest['images'])} images to {out}: {', '.join(manifest['bands'])}, {size}"]
    labelled = sum(counts) or 1
    shares = ", ".join(f"{n} {100 * c / labelled:.1f} %" for n, c in zip(names, counts, strict=True))
    lines.append(f"  {100 * sum(counts) / pixels:.1f} % of the pixels are labelled: {shares}")
    lines.append(f"  look at {out}/{PICTURE}; then: crisp train {shlex.quote(f'data={out}')}")
    return "\n".join(lines)


def _progress(quiet: bool, items: Iterable[Any], what: str, total: int) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import track

    yield from track(items, f"{what:<9}", total, console=Console(stderr=True), disable=quiet)


def _summary(out: str, manifest: dict[str, Any]) -> str:
    protocols = ", ".join(manifest["protocols"]) or "none, for lack of tiles or labels"
    lines = [f"wrote {len(manifest['images'])} images to {out}; protocols: {protocols}"]
    names = [row["name"] for row in manifest["classes"] if not row.get("ignore")]
    for variant in manifest["labels"]:
        counts = manifest["histogram"][variant]
        total = sum(counts) or 1
        shares = ", ".join(f"{n} {100 * c / total:.1f} %" for n, c in zip(names, counts, strict=True))
        lines.append(f"  {variant} labels: {shares}")
    mended = sum(label["mended"] for entry in manifest["images"] for label in entry["labels"].values())
    if mended:
        lines.append(f"  {mended} label pixels were not in an exact class colour; see dataset.json")
    return "\n".join(lines)
