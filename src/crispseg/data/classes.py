"""Class tables: the names of the classes, and the values or colours they have in mask files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from crispseg.config import shown
from crispseg.data.colours import Colour as Colour
from crispseg.data.colours import class_colours
from crispseg.errors import UserError
from crispseg.reading import read_csv, read_json, read_yaml_file

IGNORE = 255
_LARGEST_ID = 2**53  # beyond it a float mask has no whole numbers of its own
MAX_CLASSES = 255  # ids 0..254; 255 is taken


@dataclasses.dataclass(frozen=True)
class ClassTable:
    """Class names in id order, with the colour and the value each has in the mask files."""

    names: tuple[str, ...]
    colours: tuple[Colour, ...] = ()  # one per class, or none: then the masks must be index masks (see `by_colour`)
    values: tuple[int, ...] = ()  # one per class, or none: 0, 1, 2, ...
    ignored_colours: tuple[Colour, ...] = ()
    ignored_values: tuple[int, ...] = (IGNORE,)

    def __post_init__(self) -> None:
        if not self.names:
            raise UserError("a class table must name at least one class")
        if len(self.names) > MAX_CLASSES:
            raise UserError(f"a class table may name {MAX_CLASSES} classes at most, not {len(self.names)}")
        _refuse_repeats("class name", self.names)
        _refuse_repeats("class colour", (*self.colours, *self.ignored_colours))
        _refuse_repeats("class id", self.file_values)
        for what, given in (("colours", self.colours), ("ids", self.values)):
            if given and len(given) != len(self.names):
                raise UserError(f"the class table has {len(self.names)} names but {len(given)} {what}")

    @property
    def file_values(self) -> tuple[int, ...]:
        """The value of each class in an index mask."""
        return self.values or tuple(range(len(self.names)))

    @property
    def by_colour(self) -> bool:
        """Whether masks are read by their colours: the table has colours and says nothing of ids."""
        return bool(self.colours) and not self.values

    @property
    def palette(self) -> tuple[Colour, ...]:
        """A colour for every class: where the table has none, what people expect of the name (`class_colours`)."""
        return self.colours or class_colours(self.names)

    def to_rows(self) -> list[dict[str, Any]]:
        """The table as plain rows, the form of dataset.json; `table_from_rows` takes them back."""
        rows: list[dict[str, Any]] = [
            {"name": name, "id": value, **({"colour": list(self.colours[i])} if self.colours else {})}
            for i, (name, value) in enumerate(zip(self.names, self.file_values, strict=True))
        ]
        rows += [{"name": "ignore", "colour": list(colour), "ignore": True} for colour in self.ignored_colours]
        rows += [{"name": "ignore", "id": v, "ignore": True} for v in self.ignored_values if v not in self.file_values]
        return rows


def _refuse_repeats(what: str, values: Sequence[Any]) -> None:
    twice = {value for value in values if values.count(value) > 1}
    if twice:
        raise UserError(f"the class table gives the same {what} twice: {sorted(map(str, twice))[0]}")


def table_from_rows(rows: Iterable[Mapping[str, Any]], where: str = "the class table") -> ClassTable:
    """A table from rows with name and id, or r, g, b (or colour: [r, g, b]); `ignore` marks what not to learn."""
    names: list[str] = []
    colours: list[Colour | None] = []
    values: list[int | None] = []
    ignored_colours: list[Colour] = []
    ignored_values = {IGNORE}
    rows = list(rows)
    for number, row in enumerate(rows, 1):
        spot = f"{where}, row {number}"
        name, colour, value = (
            str(row.get("name") or "").strip(),
            _colour(row, spot),
            _whole(row.get("id"), spot),
        )
        if _truth(row.get("ignore"), spot):
            if colour is not None:
                ignored_colours.append(colour)
            if value is not None:
                ignored_values.add(value)
            continue
        if not name:
            raise UserError(f"{spot} has no class name; the columns are name, id, r, g, b, ignore")
        names.append(name)
        colours.append(colour)
        values.append(value)
        ignored_values.discard(-1 if value is None else value)
    if not any(value is not None for value in (*colours, *values)):
        _refuse_other_numbers(rows, where)
    return ClassTable(
        tuple(names),
        tuple(_all_or_none(colours, "colour", where)),
        tuple(_all_or_none(values, "id", where)),
        tuple(ignored_colours),
        tuple(sorted(ignored_values)),
    )


_COLUMNS = ("name", "id", "r", "g", "b", "colour", "color", "ignore")


def _refuse_other_numbers(rows: Sequence[Mapping[str, Any]], where: str) -> None:
    """Ids or colours under other names: classes would be counted in the order of the rows instead."""
    others = {key for row in rows for key in row} - set(_COLUMNS)
    numbers = sorted(repr(key) for key in others if all(str(row.get(key, "")).strip().isdecimal() for row in rows))
    if numbers:
        raise UserError(
            f"{where}: the classes have neither an id nor a colour, but numbers as {', '.join(numbers)}; call the "
            "values in the masks id, and colours r, g, b"
        )


def _all_or_none(values: Sequence[Any], what: str, where: str) -> list[Any]:
    given = [value for value in values if value is not None]
    if given and len(given) != len(values):
        raise UserError(f"{where}: some classes have a {what} and some have none; give it for all or for none")
    return given


def _truth(value: Any, spot: str) -> bool:
    word = str(value or "").strip().lower()
    if word not in (*_YES, *_NO):
        raise UserError(
            f"{spot}: ignore is 1 for what is not to be learnt, and empty or 0 for a class, not {shown(value)}"
        )
    return word in _YES


_YES = ("1", "1.0", "true", "yes", "y", "ignore")  # tables with gaps are written with fractions
_NO = ("", "0", "0.0", "false", "no", "n", "nan", "none", "null")


def _whole(value: Any, spot: str) -> int | None:
    if value is None or str(value).strip() == "":
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{spot}: {shown(value)} is not a whole number") from None
    if abs(number) > _LARGEST_ID:
        raise UserError(f"{spot}: {shown(value)} is no value that a mask can hold")
    return number


def _colour(row: Mapping[str, Any], spot: str) -> Colour | None:
    listed = row.get("colour", row.get("color"))
    if listed is not None and not isinstance(listed, list | tuple):
        raise UserError(f"{spot}: a colour is three numbers from 0 to 255, not {shown(listed)}")
    parts = [_whole(v, spot) for v in (listed if listed is not None else [row.get(c) for c in "rgb"])]
    if all(part is None for part in parts):
        return None
    if len(parts) != 3 or any(part is None or not 0 <= part <= 255 for part in parts):
        raise UserError(f"{spot}: a colour is three numbers from 0 to 255")
    return (int(parts[0] or 0), int(parts[1] or 0), int(parts[2] or 0))


def read_class_table(path: str | Path) -> ClassTable:
    """The table in a classes.csv, classes.yaml or dataset.json."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind == ".csv":
        rows: Any = read_csv(path, (), "class table")
    else:
        rows = read_json(path, "class table") if kind == ".json" else read_yaml_file(path, "class table")
    if isinstance(rows, Mapping):
        rows = rows.get("classes")
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise UserError(f"{path} must list classes, each with a name and an id or a colour")
    return table_from_rows(rows, str(path))
