"""Say what this machine has and what works on it."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    import json

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from crispseg.doctor import examine

    findings = examine()
    if args.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        table = Table("", "what", "found", box=None, pad_edge=False, show_header=False)
        marks = {"ok": "[green]ok[/green]", "missing": "[yellow]--[/yellow]", "broken": "[red]!![/red]"}
        for finding in findings:
            table.add_row(marks[finding.status], finding.what, escape(finding.found))
        Console().print(table)
    return 1 if any(finding.status == "broken" for finding in findings) else 0
