"""Say what this machine has and what works on it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crispseg.cli.printer import Printer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--warm",
        nargs="?",
        const="",
        metavar="MODEL",
        help="compile ahead the kernels that this model (without a word, the one that comes along) needs on this GPU",
    )
    parser.add_argument("--size", type=int, default=512, help="side of the images that --warm is for (%(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="images at once that --warm is for (%(default)s)")


def run(args: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from crispseg.cli.printer import Printer
    from crispseg.doctor import examine, warm

    out = Printer.of(args)
    findings = examine() if args.warm is None else warm(_model(args.warm, out), args.size, args.batch)
    table = Table("", "what", "found", box=None, pad_edge=False, show_header=False)
    marks = {"ok": "[green]ok[/green]", "missing": "[yellow]--[/yellow]", "broken": "[red]!![/red]"}
    for finding in findings:
        table.add_row(marks[finding.status], finding.what, escape(finding.found))
    out.result(findings, table)
    return 1 if any(finding.status == "broken" for finding in findings) else 0


def _model(word: str, out: Printer) -> str:
    from crispseg.models.shipped import DEFAULT

    if not word:
        out.say(f"no model given with --warm: compiling for {DEFAULT}, which comes along")
    return word or DEFAULT
