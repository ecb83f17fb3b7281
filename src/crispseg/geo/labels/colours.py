"""The class table of drawn polygons: their names, and the colours they were given in QGIS."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from crispseg.data.classes import MAX_CLASSES, ClassTable, Colour, read_class_table
from crispseg.data.colours import class_colours
from crispseg.errors import UserError
from crispseg.geo.labels.layers import LabelLayer
from crispseg.geo.writer import spare_hues


def class_table(layer: LabelLayer, given: str = "", background: str = "") -> tuple[ClassTable, dict[Any, int]]:
    """The classes in id order, and the id of each value of the field.

    From the file `given`, whose names (or ids, for a field of numbers) are the field's values; else one class for
    each value, with QGIS's colours where the layer is styled by this field. `background` is what no polygon covers.
    """
    values = layer.values()
    if not values:
        raise UserError(f"{layer.path}: no polygon has a value in the field {layer.field!r}")
    if given:
        table = read_class_table(given)
        return table, _ids(table, values, layer, given)
    names = [str(value) for value in values]
    if background and background not in names:
        names.insert(0, background)
    if len(names) > MAX_CLASSES:
        raise UserError(
            f"{layer.path}: field {layer.field!r} has {len(values)} different values, e.g. {', '.join(names[:3])}; "
            f"that is no field of classes (at most {MAX_CLASSES})"
        )
    table = ClassTable(tuple(names), _colours(names, drawn_colours(layer)), tuple(range(len(names))))
    return table, {value: names.index(str(value)) for value in values}


def drawn_colours(layer: LabelLayer) -> dict[str, Colour]:
    """What the GeoPackage's default style shows each value of the field in; nothing where it says nothing."""
    if Path(layer.path).suffix.lower() != ".gpkg":
        return {}
    question = "SELECT styleQML FROM layer_styles WHERE f_table_name = ? ORDER BY useAsDefault DESC"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{Path(layer.path).absolute()}?mode=ro", uri=True)) as database:
            row = database.execute(question, (layer.layer,)).fetchone()
        renderer = Xml.fromstring(row[0]).find("renderer-v2") if row else None
    except (sqlite3.Error, Xml.ParseError, TypeError):
        return {}
    if renderer is None or renderer.get("attr", "").strip('"') != layer.field:
        return {}
    fills = {symbol.get("name"): _fill(symbol) for symbol in renderer.iterfind("symbols/symbol")}
    shown = {c.get("value", ""): fills.get(c.get("symbol")) for c in renderer.iterfind("categories/category")}
    return {value: colour for value, colour in shown.items() if value and colour}


def _ids(table: ClassTable, values: Sequence[Any], layer: LabelLayer, given: str) -> dict[Any, int]:
    by_id = {value: k for k, value in enumerate(table.file_values)}
    ids: dict[Any, int] = {}
    for value in values:
        if str(value) in table.names:
            ids[value] = table.names.index(str(value))
        elif isinstance(value, int) and value in by_id:
            ids[value] = by_id[value]
        else:
            raise UserError(
                f"{layer.path}: {value!r} in the field {layer.field!r} is no class of {given}, which has "
                f"{', '.join(table.names)}"
            )
    return ids


def _colours(names: Sequence[str], drawn: dict[str, Colour]) -> tuple[Colour, ...]:
    """Those that were drawn, and what people expect of its name for each of the rest; no two alike."""
    hues = iter(spare_hues(2 * len(names) + len(drawn)))
    taken: list[Colour] = []
    for name, expected in zip(names, class_colours(tuple(names)), strict=True):
        colour = drawn.get(name, expected)
        while colour in taken:
            colour = next(hues)
        taken.append(colour)
    return tuple(taken)


def _fill(symbol: Xml.Element) -> Colour | None:
    for found in (*symbol.iterfind("layer/Option/Option"), *symbol.iterfind("layer/prop")):
        if "color" in (found.get("name"), found.get("k")):
            parts = (found.get("value") or found.get("v") or "").split(",")
            with contextlib.suppress(ValueError):
                red, green, blue = (int(part) for part in parts[:3])
                return red, green, blue
    return None
