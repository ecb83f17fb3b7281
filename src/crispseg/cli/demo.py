"""Segment a real scene with a model that comes with the package, score the map and draw it.

The scene was not trained on. DIR then holds the class map, polygons, pictures, scores and index.html, which shows them.
It takes about half a minute on two cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crispseg.cli.existing import add_existing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *("-o", "--out"),
        type=Path,
        default=Path("demo"),
        metavar="DIR",
        help="folder to write to (default %(default)s)",
    )
    parser.add_argument("-m", "--model", help="a model with the scene's classes: a folder, or a shipped model's name")
    add_existing(parser, ("refuse", "replace"))


def run(args: argparse.Namespace) -> int:
    from crispseg.cli.printer import Printer
    from crispseg.demo.page import class_table
    from crispseg.demo.run import PAGE, PICTURE, run_demo
    from crispseg.models.shipped import DEFAULT
    from crispseg.predict.progress import Bar

    out = Printer.of(args)
    with Bar(silent=out.quiet) as bar:
        demo = run_demo(args.out, DEFAULT if args.model is None else args.model, watcher=bar, existing=args.existing)
    files = {"picture": args.out / PICTURE, "page": args.out / PAGE}
    told = f"picture: {files['picture']}    page: {files['page']}"
    out.result({**demo.to_dict(), **files}, class_table(demo).markdown(), told)
    return 0
