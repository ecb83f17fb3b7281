"""What a model costs, or what a data folder holds.

A model is a name that `crisp models` lists or a folder written by model.save(): its parameters, operations, memory
and stages are printed. A data folder has images/ and masks/: its sizes, bands, class shares, mean and standard
deviation and its unreadable or mismatched pairs are printed, and a contact sheet is drawn.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crispseg.cli.existing import add_existing

if TYPE_CHECKING:
    from crispseg.errors import UserError
    from crispseg.models.base import SegmentationModel
    from crispseg.models.summary import Summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="MODEL|DATA", help="a model's name or folder, or a data folder")
    parser.add_argument("--classes", help="a model's number of classes (default 6), or a data folder's class table")
    parser.add_argument(
        *("-o", "--sheet", "--out"),
        type=Path,
        metavar="FILE",
        help="where to draw a data folder's contact sheet (default ./DATA-contact-sheet.png)",
    )
    parser.add_argument("--bands", type=int, default=3, help="number of image bands (default %(default)s)")
    parser.add_argument("--size", type=int, nargs="+", default=[512], metavar="PX", help="side, or height and width")
    parser.add_argument("options", nargs="*", metavar="key=value", help="model options, e.g. prototypes=5 dco=false")
    add_existing(parser)


def run(args: argparse.Namespace) -> int:
    if (Path(args.what) / "images").is_dir():
        return _describe_data(args)
    if Path(args.what).is_dir():
        _check_model_folder(args.what)
    return _describe_model(args)


def _check_model_folder(what: str) -> None:
    from crispseg.errors import UserError
    from crispseg.models.folder import CONFIG
    from crispseg.models.shipped import find_folder

    if not (find_folder(what) / CONFIG).is_file():
        raise UserError(f"{what} is neither a model (it has no {CONFIG}) nor a data folder (it has no images/)")


def _describe_data(args: argparse.Namespace) -> int:
    from crispseg.cli.printer import Printer
    from crispseg.data import inspect
    from crispseg.outputs import check_existing, there

    if args.sheet is not None:
        check_existing([args.sheet], args.existing)
    report = inspect(args.what, classes=args.classes)
    values, shown = report.to_dict(), [str(report)]
    sheet = args.sheet or Path(f"{Path(args.what).resolve().name}-contact-sheet.png")
    if report.thumbnails:
        kept = there(sheet) and args.existing != "replace"
        values["sheet"] = sheet if kept else report.contact_sheet(sheet)
        shown.append(f"contact sheet: {sheet}" + (" was there already and is kept" if kept else ""))
    Printer.of(args).result(values, *shown)
    return 1 if report.problems else 0


def _describe_model(args: argparse.Namespace) -> int:
    import crispseg
    from crispseg import config as configs
    from crispseg.cli.printer import Printer, plain
    from crispseg.errors import UserError
    from crispseg.models.registry import list_models
    from crispseg.models.shipped import is_saved
    from crispseg.models.summary import made_on, summarize

    if min(args.size) < 1 or len(args.size) > 2:
        raise UserError("--size takes one side or a height and a width, in pixels")
    if args.classes is not None and not args.classes.isdecimal():
        raise UserError(f"--classes of a model is a number, not {args.classes!r}")
    classes = None if args.classes is None else int(args.classes)
    if is_saved(args.what):
        if args.options:
            raise UserError("a saved model's options are fixed; give a model name to try others")
        model = crispseg.load(args.what, num_classes=classes)
    elif args.what not in list_models():
        raise _unknown(args.what)
    else:
        options = configs.parse_overrides(args.options)
        model = made_on("meta", args.what, 6 if classes is None else classes, args.bands, options)
    height, width = args.size[0], args.size[-1]
    summary = summarize(model, height, width)
    values = {"model": model.name, "classes": model.num_classes, "bands": model.in_channels, "size": [height, width]}
    Printer.of(args).result(values | plain(summary), *_shown(model, summary, height, width))
    return 0


def _unknown(word: str) -> UserError:
    """What it might have been: a path has no model's name, and 22 names help nobody who mistyped a folder."""
    from crispseg.errors import UserError, nearest
    from crispseg.models.registry import list_models
    from crispseg.models.shipped import list_shipped

    hint = "" if "/" in word else nearest(word, [*list_models(), *list_shipped()])
    return UserError(f"there is no folder {word}, nor a model of that name{hint or '; `crisp models` lists them'}")


def _shown(model: SegmentationModel, summary: Summary, height: int, width: int) -> list[Any]:
    from rich.table import Table

    classes = ", ".join(model.info.classes) or model.num_classes
    megabytes = summary.parameters * 4 / 2**20
    in_training = f" ({summary.training_macs / 1e9:.3f} in training, with auxiliary heads)"
    lines = [
        f"{model.name}  {model.in_channels} bands -> classes: {classes}",
        f"parameters   {summary.parameters / 1e6:.4f} M ({megabytes:.1f} MiB in float32, {megabytes / 2:.1f} in half)",
        f"operations   {summary.macs / 1e9:.3f} GMACs for one {height} x {width} image"
        + (in_training if summary.training_macs != summary.macs else ""),
        f"memory       {summary.activation_bytes / 2**20:.1f} MiB of activations at the peak, float32, batch 1",
    ]
    table = Table("part", "params", "GMACs", "output", box=None, pad_edge=False)
    for part in summary.parts:
        shape = " x ".join(map(str, part.output[1:]))
        table.add_row(part.name, f"{part.parameters:,}", f"{part.macs / 1e9:.3f}", shape)
    return [*lines, table]
