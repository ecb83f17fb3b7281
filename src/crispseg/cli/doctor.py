"""Say what this machine has and what works on it."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--warm", metavar="MODEL", help="compile ahead the kernels that this model needs on this GPU")
    parser.add_argument("--size", type=int, default=512, help="side of the images that --warm is for (%(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="images at once that --warm is for (%(default)s)")


def run(args: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from crispseg.cli.printer import Printer
    from crispseg.doctor import examine, warm

    findings = warm(args.warm, args.size, args.batch) if args.warm else examine()
    table = Table("", "what", "found", box=None, pad_edge=False, show_header=False)
    marks = {"ok": "[green]ok[/green]", "missing": "[yellow]--[/yellow]", "broken": "[red]!![/red]"}
    for finding in findings:
        table.add_row(marks[finding.status], finding.what, escape(finding.found))
    Printer.of(args).result(findings, table)
    return 1 if any(finding.status == "broken" for finding in findings) else 0
