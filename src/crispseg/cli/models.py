"""List the models that can be created, with their parameters and operations at 512 x 512 pixels.

Below them are the trained models that come with crispseg; their names stand wherever a model's folder can.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="*", help="shell-style pattern, e.g. 'crisp*'")
    parser.add_argument("--classes", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="names only, nothing counted")


def run(args: argparse.Namespace) -> int:
    import fnmatch

    import torch
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from crispseg.errors import UserError
    from crispseg.models.registry import create_model, entries, missing_requirement
    from crispseg.models.shipped import list_shipped
    from crispseg.models.summary import summarize

    found = {name: entry for name, entry in entries().items() if fnmatch.fnmatchcase(name, args.pattern)}
    trained = [] if args.quick else fnmatch.filter(list_shipped(), args.pattern)
    if not found and not trained:
        raise UserError(f"no model matches {args.pattern!r}; `crisp models` lists all")
    if args.quick:
        print("\n".join(found))
        return 0
    table = Table("model", "params M", "GMACs", "what it is", box=None, pad_edge=False)
    for name, entry in found.items():
        install = missing_requirement(entry)
        if install:
            table.add_row(name, "", "", f"{entry.summary} (needs {escape(install)})")
            continue
        with torch.device("meta"):
            summary = summarize(create_model(name, args.classes))
        table.add_row(name, f"{summary.parameters / 1e6:.2f}", f"{summary.macs / 1e9:.2f}", entry.summary)
    console = Console()
    if found:
        console.print(table)
    if trained:
        _print_trained(console, trained)
    return 0


def _print_trained(console: Console, names: list[str]) -> None:
    from rich.table import Table

    from crispseg.models.folder import load

    table = Table("trained model", "is a", "mIoU", "trained on", box=None, pad_edge=False)
    for name in names:
        model = load(name)
        score = model.info.scores.get("mIoU")
        table.add_row(name, model.name, "" if score is None else f"{100 * score:.2f}", model.info.training_data)
    console.print()
    console.print(table)
