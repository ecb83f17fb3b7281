"""Say what this machine has and what works on it."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing to choose."""


def run(args: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from crispseg.cli.printer import Printer
    from crispseg.doctor import examine

    findings = examine()
    table = Table("", "what", "found", box=None, pad_edge=False, show_header=False)
    marks = {"ok": "[green]ok[/green]", "missing": "[yellow]--[/yellow]", "broken": "[red]!![/red]"}
    for finding in findings:
        table.add_row(marks[finding.status], finding.what, escape(finding.found))
    Printer.of(args).result(findings, table)
    return 1 if any(finding.status == "broken" for finding in findings) else 0
