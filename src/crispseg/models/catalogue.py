"""What every registered model costs, counted once and kept beside this file, so that listing models takes no torch.

`tools/write_catalogue.py` writes it; a test says when it is out of date.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

PATH = Path(__file__).with_name("catalogue.json")
CLASSES, SIDE = 6, 512  # what the counts were made for


class Listed(NamedTuple):
    name: str
    summary: str
    requires: str  # a package that must be importable, or ""
    extra: str  # the pip extra that brings it, or ""
    parameters: int
    macs: int  # of one SIDE x SIDE image of three bands


def read_catalogue() -> list[Listed]:
    return [Listed(**row) for row in json.loads(PATH.read_text(encoding="utf-8"))]


def count(name: str, classes: int = CLASSES) -> Listed:
    """One model's row, counted now."""
    from crispseg.models.registry import entries
    from crispseg.models.summary import made_on, summarize

    entry = entries()[name]
    summary = summarize(made_on("meta", name, classes, 3, {}), SIDE, SIDE)
    return Listed(name, entry.summary, entry.requires, entry.extra, summary.parameters, summary.macs)


def count_own(pattern: str, classes: int = CLASSES) -> list[Listed]:
    """Rows of the networks that the user's own modules register. Where there are none, torch is not needed."""
    from crispseg.models.plugins import any_named

    if not any_named():
        return []
    from crispseg.models.registry import list_models

    known = {row.name for row in read_catalogue()}
    return [_counted_or_not(name, classes) for name in list_models(pattern) if name not in known]


def _counted_or_not(name: str, classes: int) -> Listed:
    from crispseg.models.registry import entries
    from crispseg.reading import reason

    try:
        return count(name, classes)
    except Exception as error:  # whatever the user's network raises: the others are listed all the same
        return Listed(name, f"{entries()[name].summary}; cannot be counted: {reason(error)}", "", "", 0, 0)


def write_catalogue() -> None:
    """Count all registered models; every package that some of them need must be there."""
    from crispseg.files import write_json
    from crispseg.models.registry import list_models

    rows: list[dict[str, Any]] = [count(name)._asdict() for name in list_models()]
    write_json(PATH, rows)
