"""Choose the windows of a map where labels would help most: those it is least sure of, none over another.

  crisp suggest map.tif --count 20

writes map_windows.gpkg with two layers: `labels`, the predicted regions in the windows, to be corrected in QGIS, and
`windows`, which say where the labels are complete. The map needs its confidence map (crisp predict --confidence).
The documentation's page "Looking at maps" shows the whole loop.
"""

from __future__ import annotations

import argparse

from crispseg.cli.existing import add_existing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("map", metavar="MAP", help="a class map made by crisp predict --confidence")
    parser.add_argument(*("-o", "--output", "--out"), metavar="FILE", help="a .gpkg (default MAP_windows.gpkg)")
    parser.add_argument("--count", type=int, default=20, metavar="N", help="how many windows (%(default)s)")
    parser.add_argument("--side", type=int, default=512, metavar="PX", help="side of a window (%(default)s)")
    parser.add_argument("--confidence", metavar="FILE", help="the confidence map (default MAP_confidence.tif)")
    add_existing(parser, ("refuse", "replace"))


def run(args: argparse.Namespace) -> None:
    from crispseg.cli.printer import Printer
    from crispseg.geo.suggest import suggest

    target, chosen = suggest(args.map, args.confidence, args.count, args.side, args.output, args.existing)
    lines = [
        f"{number:>4}  row {w.top:<6} column {w.left:<6} confidence {100 * (w.confidence or 0):5.1f} %"
        for number, w in enumerate(chosen, 1)
    ]
    fewer = f" ({args.count} were asked for; no more fit)" if len(chosen) < args.count else ""
    lines.append(f"{args.map} -> {target}: {len(chosen)} windows of {chosen[0].width} x {chosen[0].height} px{fewer}")
    Printer.of(args).result({"map": args.map, "file": target, "windows": chosen}, *lines)
