"""Look at a map, a training run or a report in the browser.

  crisp view map.tif city.tif                          map and image with a divider between them
  crisp view map.tif city.tif --confidence map_confidence.tif --truth labels.tif --polygons map.gpkg
  crisp view a.tif b.tif city.tif                      two maps side by side, and where they differ
  crisp view runs/potsdam-crisp_tiny-1                 a training run while it runs
  crisp view reports/potsdam-crisp_tiny-1              an evaluation, its worst places as links onto the map
  crisp view map.tif city.tif --save page.html         one file for mail and papers (up to 4096 px a side)

The page is served on this machine alone; its address, with a token, is the one line on stdout. On a remote machine:
ssh -L 8000:127.0.0.1:8000 REMOTE, there crisp view ... --port 8000 --no-open, and open the printed address here.
Ctrl-C ends it. Nothing is written but what --save names. The documentation's page
"Looking at maps" says more.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crispseg.cli.existing import add_existing
from crispseg.errors import UserError

if TYPE_CHECKING:
    from crispseg.cli.printer import Printer
    from crispseg.view.scene import Files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="MAP", help="a class map, or the folder of a training run or a report")
    parser.add_argument(
        "others", nargs="*", metavar="IMAGE", help="the image it was made from; a file with classes is a second map"
    )
    parser.add_argument("--confidence", metavar="FILE", help="the confidence map that belongs to it")
    parser.add_argument("--truth", metavar="FILE", help="labels: class ids, or the map's colours")
    parser.add_argument("--polygons", metavar="FILE", help="any vector file, e.g. the map's own .gpkg")
    parser.add_argument(
        *("-o", "--save", "--out"), metavar="FILE", help="write one self-contained .html instead of serving"
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default 0: any free one")
    parser.add_argument("--host", default="127.0.0.1", help="listen elsewhere too, e.g. 0.0.0.0 (default %(default)s)")
    parser.add_argument("--no-open", action="store_true", help="do not open the browser")
    add_existing(parser, ("refuse", "replace"))


def run(args: argparse.Namespace) -> None:
    from crispseg.cli.printer import Printer

    _check_extra()
    out = Printer.of(args)
    if os.path.isdir(args.what):
        app = _folder_app(args)
    else:
        from crispseg.view.app import make_app
        from crispseg.view.scene import Scene

        if args.save is not None:
            _save(args, out)
            return
        app = make_app([Scene(_files(args))])
    from crispseg.view.guard import is_loopback
    from crispseg.view.serving import Server, show

    server = Server(app, args.port, args.host)
    if not is_loopback(args.host):
        out.warn(f"listening on {args.host}: whoever can reach it and has the token sees it")
    out.result({"address": server.address, "port": server.port}, server.address)
    out.say("Ctrl-C ends it")
    show(server, browser=not args.no_open)


def _check_extra() -> None:
    missing = [name for name in ("fastapi", "uvicorn", "rio_tiler") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"crisp view needs {', '.join(missing)}: pip install 'crispseg[view]'")


def _files(args: argparse.Namespace) -> Files:
    from crispseg.view.scene import Files, sort_files

    maps, image = sort_files(args.what, args.others)
    return Files(maps, image, args.confidence, args.truth, args.polygons)


def _save(args: argparse.Namespace, out: Printer) -> None:
    from crispseg.outputs import check_existing, refuse_inputs
    from crispseg.view.save import save_page
    from crispseg.view.scene import Scene

    path = args.save
    if not path.lower().endswith((".html", ".htm")):
        raise UserError(f"--save writes a page: name it .html, not {path}")
    given = (args.what, *args.others, args.confidence, args.truth, args.polygons)
    refuse_inputs([Path(path)], filter(None, given))
    check_existing([Path(path)], args.existing)
    size = save_page(Scene(_files(args)), path, args.existing)
    out.result({"page": path, "bytes": size}, f"{path}: {size / 2**20:.1f} MiB, needs nothing else")


def _folder_app(args: argparse.Namespace) -> Any:
    from crispseg.view.folders import folder_app

    given = [name for name in ("confidence", "truth", "polygons", "save") if getattr(args, name) is not None]
    if args.others or given:
        extra = f"--{given[0]}" if given else args.others[0]
        raise UserError(f"{args.what} is a folder, which is shown by itself; {extra} belongs to a map")
    return folder_app(args.what)
