"""Keeps a benchmark's results: one JSON list and one Markdown table, a line for each command."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crispseg.files import write_json, write_text


def measure_and_record(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    path: Path,
    title: str,
    notes: str,
) -> None:
    """What a command measures is printed, and kept unless --no-record."""
    parser.add_argument("--no-record", action="store_true")
    args = parser.parse_args()
    entry = measure(args)
    print(json.dumps(entry, indent=2))
    if not args.no_record:
        record(path, title, notes, entry)


def record(path: Path, title: str, notes: str, entry: dict[str, Any]) -> None:
    """Put an entry, which has a `command`, in the place of an earlier one of the same command, or at the end."""
    entries = json.loads(path.read_text()) if path.exists() else []
    entries = [e for e in entries if e["command"] != entry["command"]] + [entry]
    write_json(path, entries)
    columns = [key for key in entry if key != "command"]
    lines = [
        f"# {title}",
        "",
        notes,
        "",
        "| " + " | ".join(columns) + " | command |",
        "|" + "---|" * (len(columns) + 1),
        *("| " + " | ".join(str(e[c]) for c in columns) + f" | `{e['command']}` |" for e in entries),
    ]
    write_text(path.with_suffix(".md"), "\n".join(lines) + "\n")
