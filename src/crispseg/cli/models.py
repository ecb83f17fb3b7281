"""List the models that can be created, with their parameters and operations at 512 x 512 pixels.

Below them are the trained models that come with crispseg, whose names stand wherever a model's folder can, and the
pretrained backbones. `crisp train` starts from the trained model of the same network, or else from the backbone.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from crispseg.models.catalogue import Listed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="*", help="shell-style pattern, e.g. 'crisp*'")
    parser.add_argument("--classes", type=int, default=6, help="count for so many classes (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="names only")


def run(args: argparse.Namespace) -> int:
    import fnmatch

    from crispseg.cli.printer import Printer
    from crispseg.errors import UserError
    from crispseg.models.shipped import list_backbones_with_weights, list_shipped

    listed = _listed(args.pattern, args.classes)
    trained = [_trained(name) for name in fnmatch.filter(list_shipped(), args.pattern)]
    backbones = [_backbone(name) for name in fnmatch.filter(list_backbones_with_weights(), args.pattern)]
    if not listed and not trained and not backbones:
        raise UserError(f"no model matches {args.pattern!r}; {_instead(args.pattern)}`crisp models` lists all")
    values = {"models": listed, "trained": trained, "backbones": backbones, "classes": args.classes}
    if args.quick:
        names = [row.name for row in listed] or [row["name"] for row in [*trained, *backbones]]
        shown: list[Any] = ["\n".join(names)]
    else:
        shown = [_models_table(listed)] if listed else []
        shown += [_trained_table(trained)] if trained else []
        shown += [_backbones_table(backbones)] if backbones else []
    Printer.of(args).result(values, *shown)
    return 0


def _instead(pattern: str) -> str:
    """Of a backbone that has no weights here."""
    from crispseg.models.vssd import list_backbones

    if pattern not in list_backbones():
        return ""
    return f"it is a backbone without weights, for `crisp pretrain ... model={pattern}`; "


def _listed(pattern: str, classes: int) -> list[Listed]:
    """From the catalogue; for another number of classes the models are built and counted, which takes its time. The
    user's own networks are always counted."""
    import fnmatch

    from crispseg.models import catalogue

    found = [row for row in catalogue.read_catalogue() if fnmatch.fnmatchcase(row.name, pattern)]
    if classes != catalogue.CLASSES:
        found = [row if _missing(row) else catalogue.count(row.name, classes) for row in found]
    return found + catalogue.count_own(pattern, classes)


def _missing(row: Listed) -> str:
    """What to install before this model can be created; empty when nothing is missing."""
    import importlib.util

    if not row.requires or importlib.util.find_spec(row.requires) is not None:
        return ""
    return f"pip install 'crispseg[{row.extra}]'"


def _models_table(listed: list[Listed]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table("model", "params M", "GMACs", "what it is", box=None, pad_edge=False)
    for row in listed:
        needs = f" (needs {escape(_missing(row))})" if _missing(row) else ""
        table.add_row(row.name, f"{row.parameters / 1e6:.2f}", f"{row.macs / 1e9:.2f}", row.summary + needs)
    return table


def _backbone(name: str) -> dict[str, Any]:
    from crispseg.models.shipped import read_backbone_card

    info = read_backbone_card(name)["info"]
    return {"name": name, "training_data": info["training_data"], "scores": info["scores"]}


def _backbones_table(backbones: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table("pretrained backbone", "trained on", box=None, pad_edge=False)
    for row in backbones:
        table.add_row(row["name"], row["training_data"])
    return table


def _trained(name: str) -> dict[str, Any]:
    from crispseg.models.shipped import read_card

    config = read_card(name)
    info = config["info"]
    return {
        "name": name,
        "model": config["name"],
        "classes": info["classes"],
        "mIoU": info["scores"].get("mIoU"),
        "trained_on": info["training_data"],
    }


def _trained_table(trained: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table("\ntrained model", "\nis a", "\nmIoU", "\ntrained on", box=None, pad_edge=False)
    for row in trained:
        score = "" if row["mIoU"] is None else f"{100 * row['mIoU']:.2f}"
        table.add_row(row["name"], row["model"], score, row["trained_on"])
    return table
