"""Turn the archives of a known data set into one checked folder that training and evaluation read.

  crisp prepare potsdam --source ARCHIVES --out data/potsdam

ARCHIVES is a folder with the zip files as they are distributed, or unpacked, or already cut in the mmsegmentation
or GeoSeg layout. Everything is checked before anything is written; an interrupted run continues when started again.
Your own images need no preparing: put them into images/ and masks/.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterable, Iterator
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from crispseg.data.prepare import DATASETS

    parser.add_argument("dataset", choices=DATASETS)
    parser.add_argument("--source", required=True, help="folder (or zip) with the archives or their unpacked files")
    parser.add_argument("--out", required=True, help="folder to write")
    parser.add_argument(
        "--labels", choices=("both", "full", "eroded"), default="both", help="ISPRS label variants to expect"
    )
    parser.add_argument("--allow-missing", action="store_true", help="prepare what is there when tiles are missing")
    parser.add_argument(
        "--unknown-colours",
        choices=("error", "ignore"),
        default="error",
        help="what to do with label colours that are no class (default: stop; never guess)",
    )
    parser.add_argument(
        "--colour-tolerance",
        type=int,
        default=0,
        metavar="N",
        help="take a label colour for a class colour that differs by at most N in every channel (default: 0, exact)",
    )
    parser.add_argument("--check", action="store_true", help="only check; write nothing")


def run(args: argparse.Namespace) -> int:
    from crispseg.cli.printer import Printer
    from crispseg.data.prepare import Choices, check, make_plan, prepare

    choices = Choices(args.labels, args.unknown_colours, args.colour_tolerance, args.allow_missing)
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
        manifest = prepare(plan, args.out, choices, progress)
    except KeyboardInterrupt:
        out.warn("interrupted; what is finished is kept, the same command continues")
        raise
    values = {"out": args.out, **{key: manifest[key] for key in ("protocols", "classes", "labels", "histogram")}}
    out.result({**values, "images": len(manifest["images"])}, _summary(args.out, manifest))
    return 0


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
