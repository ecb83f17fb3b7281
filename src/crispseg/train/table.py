"""Tables of experiments: rows that each change something in a common config, and what came of them."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crispseg import config as configs
from crispseg.errors import UserError
from crispseg.train.run_folder import RESULT


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    set: dict[str, Any] = dataclasses.field(default_factory=dict)  # laid over the table's `set`
    paper: dict[str, float] = dataclasses.field(default_factory=dict)  # the paper's numbers, to show beside ours

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


@dataclasses.dataclass(frozen=True)
class Table:
    title: str
    rows: tuple[Row, ...]
    size: str = "tiny"  # what {size} stands for in the names of models
    set: dict[str, Any] = dataclasses.field(default_factory=dict)  # common to all rows
    notes: str = ""


def read_table(path: Path, size: str | None = None) -> Table:
    table = configs.build(Table, configs.read_yaml(path))
    slugs = [row.slug for row in table.rows]
    twice = [row.name for row in table.rows if slugs.count(row.slug) > 1]
    if twice or not table.rows:
        raise UserError(f"{path}: {f'two rows are called {twice[0]!r}' if twice else 'the table has no rows'}")
    return dataclasses.replace(table, size=size or table.size)


def row_values(table: Table, row: Row, base: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a row: the base, what the table sets, what the row sets."""
    values = configs.merge(configs.merge(base, table.set), row.set)
    filled: dict[str, Any] = _fill(values, table.size)
    return filled


def _fill(value: Any, size: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _fill(item, size) for key, item in value.items()}
    return value.replace("{size}", size) if isinstance(value, str) else value


@dataclasses.dataclass(frozen=True)
class Column:
    heading: str
    weights: str  # "last": as training ended; "best": selected on the validation images
    score: str
    scale: float = 100.0
    digits: int = 2


COLUMNS = (
    Column("mIoU", "last", "mIoU"),
    Column("mF1", "last", "mF1"),
    Column("BF@3px", "last", "BF@3px", 1.0, 4),
    Column("best mIoU", "best", "mIoU"),
)


def read_results(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """The result.json of those runs that are finished."""
    return [json.loads(p.read_text(encoding="utf-8")) for run in runs if (p := run / RESULT).exists()]


def summarise(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per column: the values of the runs, their mean, and their standard deviation (of two or more)."""
    summary = {}
    for column in COLUMNS:
        values = [result[column.weights].get(column.score) for result in results]
        known = [value * column.scale for value in values if value is not None]
        summary[column.heading] = {
            "values": known,
            "mean": statistics.fmean(known) if known else None,
            "spread": statistics.stdev(known) if len(known) > 1 else None,
        }
    return summary


def as_markdown(table: Table, rows: Sequence[tuple[Row, Sequence[Mapping[str, Any]]]]) -> str:
    """The table with mean and spread, and below it what the scores were made on."""
    quoted = list(dict.fromkeys(name for row, _ in rows for name in row.paper))
    headings = ["", "runs", *(column.heading for column in COLUMNS), *(f"paper's {name}" for name in quoted)]
    lines = [f"## {table.title}", "", _line(headings), _line(["---"] * len(headings))]
    for row, results in rows:
        summary = summarise(results)
        numbers = [_number(summary[column.heading], column.digits) for column in COLUMNS]
        papers = [f"{row.paper[name]:g}" if name in row.paper else "" for name in quoted]
        lines.append(_line([row.name, str(len(results)), *numbers, *papers]))
    facts = [result for _, results in rows for result in results]
    protocols = list(dict.fromkeys(result["protocol"] for result in facts))
    steps = sorted({result["steps"] for result in facts})
    lines += ["", *protocols]
    if facts:
        lines += [
            "",
            f"{', '.join(map(str, steps))} steps; mean ± standard deviation over seeds. mIoU, mF1 and BF are of",
        ]
        lines += ["the weights as training ended; best mIoU is of those selected on the images it is scored on."]
    return "\n".join([*lines, *([table.notes.strip()] if table.notes else [])]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(summary: Mapping[str, Any], digits: int) -> str:
    if summary["mean"] is None:
        return "-"
    spread = "" if summary["spread"] is None else f" ± {summary['spread']:.{digits}f}"
    return f"{summary['mean']:.{digits}f}{spread}"
