"""A table: rows that each change something in a common config. crispseg/configs/tables/ holds ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crispseg import config as configs
from crispseg.errors import UserError, unknown

# What a result has of a run, and of each of its classes: `F1 car`.
SCORES = ("mIoU", "mF1", "OA", "BF@3px", "BIoU@3px", "band mIoU@3px", "band accuracy@3px")
CLASS_SCORES = ("IoU", "F1", "precision", "recall")


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    set: dict[str, Any] = dataclasses.field(default_factory=dict)  # laid over the table's `set`
    against: str | None = None  # the row it is compared with; none: the table's baseline
    # the paper's numbers, to show with ours: by score, or by data set (potsdam) and then by score
    paper: dict[str, float | dict[str, float]] = dataclasses.field(default_factory=dict)

    def paper_on(self, dataset: str) -> dict[str, float]:
        """The paper's numbers of one data set; those of none in particular for an empty name."""
        if not dataset:
            return {name: value for name, value in self.paper.items() if not isinstance(value, dict)}
        found = self.paper.get(dataset, {})
        return found if isinstance(found, dict) else {}


@dataclasses.dataclass(frozen=True)
class Speed:
    """How the rows' models are timed; what the machine cannot do (graphs without CUDA) is left out."""

    sizes: tuple[int, ...] = (512,)
    batches: tuple[int, ...] = (1, 16)
    cpu_batches: tuple[int, ...] | None = None  # on a CPU, where a large batch takes minutes; none: `batches`
    precision: str | None = None  # none: bf16 on a GPU, fp32 on a CPU
    modes: tuple[str, ...] = ("graph", "compiled")  # the first is the one that is drawn
    classes: int = 6
    bands: int = 3
    beside: tuple[str, ...] = ()  # models that are timed with the rows' and shown below them, such as other sizes
    repeats: int | None = None  # timed runs of each; none: the bench's own number


@dataclasses.dataclass(frozen=True)
class Table:
    title: str
    rows: tuple[Row, ...]
    name: str = ""  # of the files it is written to; none: the table file's
    size: str = "tiny"  # what {size} stands for in the names of models
    set: dict[str, Any] = dataclasses.field(default_factory=dict)  # common to all rows
    baseline: str | None = None  # the row the others are compared with; none: the first
    scores: tuple[str, ...] = ("mIoU", "mF1", "BF@3px")  # what is shown, by the names in result.json
    bench: Speed | None = None
    notes: str = ""

    def opponent(self, row: Row) -> Row | None:
        """The row that this one is compared with; none for the baseline itself."""
        name = row.against or self.baseline or self.rows[0].name
        return None if name == row.name else next(other for other in self.rows if other.name == name)


def read_table(path: Path, size: str | None = None) -> Table:
    table = configs.build(Table, configs.read_yaml(path))
    names = [row.name for row in table.rows]
    twice = [name for name in names if names.count(name) > 1]
    if twice or not names:
        raise UserError(f"{path}: {f'two rows are called {twice[0]!r}' if twice else 'the table has no rows'}")
    for score in table.scores:
        kind, _, of_class = score.partition(" ")
        if score not in SCORES and not (kind in CLASS_SCORES and of_class):
            raise UserError(f"{path}: {unknown('score', score, [*SCORES, *(f'{one} CLASS' for one in CLASS_SCORES)])}")
    if not table.scores:
        raise UserError(f"{path}: scores is empty; leave it out, or name at least one")
    for name in (table.baseline, *(row.against for row in table.rows)):
        if name is not None and name not in names:
            raise UserError(f"{path}: {unknown('row', name, names)}")
    return dataclasses.replace(table, name=table.name or path.stem, size=size or table.size)


def row_values(table: Table, row: Row, base: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a row: the base, what the table sets, what the row sets."""
    values = configs.merge(configs.merge(base, table.set), row.set)
    filled: dict[str, Any] = _fill(values, table.size)
    return filled


def _fill(value: Any, size: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _fill(item, size) for key, item in value.items()}
    return value.replace("{size}", size) if isinstance(value, str) else value
