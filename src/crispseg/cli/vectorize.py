"""Turn a class map (one band of class ids, 255 or its nodata for no data) into polygons, in bounded memory.

crisp vectorize map.tif -o map.gpkg --min-area 20 --simplify 0.5
"""

from __future__ import annotations

import argparse

from crispseg.cli.existing import add_existing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("map", metavar="MAP", help="a raster of class ids")
    parser.add_argument(
        *("-o", "--output", "--out"), required=True, metavar="OUT", help="a .gpkg, .geojson, .fgb or .parquet file"
    )
    parser.add_argument("--confidence", metavar="FILE", help="the confidence map that belongs to it")
    parser.add_argument(
        "--min-area", type=float, default=0.0, metavar="M2", help="merge smaller regions into their neighbours"
    )
    parser.add_argument(
        "--simplify", type=float, default=0.0, metavar="M", help="simplify outlines; shared edges stay shared"
    )
    add_existing(parser)


def run(args: argparse.Namespace) -> None:
    from crispseg.cli.printer import Printer
    from crispseg.geo.vectorize import vectorize_map

    count = vectorize_map(args.map, args.output, args.confidence, args.min_area, args.simplify, args.existing)
    values = {"map": args.map, "polygons": args.output, "regions": count}
    said = "there already, skipped" if count is None else f"{count} regions"
    Printer.of(args).result(values, f"{args.map} -> {args.output}: {said}")
