"""How maps look in QGIS and other programs: named, coloured classes, without anything to set by hand.

A TIFF's colour table always has 256 entries and no names. Beside a class map we put what GDAL reads with it, `.aux.xml`
(a colour table of our classes alone, their names, a raster attribute table), and what QGIS reads, `.qml`. A GeoPackage
holds its style itself, in the table `layer_styles`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as Xml

Colour = tuple[int, int, int]

_QGIS = "3.22"  # the oldest version that the style files are written for
# GDAL's kinds of columns in an attribute table: (name, type, usage)
_INTEGER, _STRING = 0, 2
_COLUMNS = (
    ("Value", _INTEGER, 5),  # of the pixels: the class id
    ("Class", _STRING, 2),
    ("Count", _INTEGER, 1),
    ("Red", _INTEGER, 6),
    ("Green", _INTEGER, 7),
    ("Blue", _INTEGER, 8),
)
_NOT_IN_XML = re.compile(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclasses.dataclass(frozen=True)
class Style:
    """Names and colours of the classes, in id order; `always` are the ids that a legend of polygons shows even where
    no polygon has them."""

    classes: tuple[str, ...]
    palette: tuple[Colour, ...]
    always: tuple[int, ...] = ()

    def raster_qml(self) -> str:
        """For a class map: QGIS's "paletted / unique values"."""
        root = _qgis_document()
        renderer = Xml.SubElement(
            Xml.SubElement(root, "pipe"),
            "rasterrenderer",
            {"type": "paletted", "band": "1", "opacity": "1", "alphaBand": "-1", "nodataColor": ""},
        )
        entries = Xml.SubElement(renderer, "colorPalette")
        for k, (name, colour) in enumerate(self._named()):
            shown = {"value": str(k), "label": name, "color": "#{:02x}{:02x}{:02x}".format(*colour), "alpha": "255"}
            Xml.SubElement(entries, "paletteEntry", shown)
        return _text(root)

    def vector_qml(self, ids: Sequence[int], column: str = "class") -> str:
        """For polygons of some classes: QGIS's "categorized" by the column that holds the names."""
        root = _qgis_document()
        about = {"type": "categorizedSymbol", "attr": column, "symbollevels": "0", "enableorderby": "0"}
        renderer = Xml.SubElement(root, "renderer-v2", {**about, "forceraster": "0"})
        categories = Xml.SubElement(renderer, "categories")
        symbols = Xml.SubElement(renderer, "symbols")
        named = self._named()
        for k in ids:
            name, colour = named[k]
            shown = {"value": name, "label": name, "symbol": str(k), "render": "true", "type": "string"}
            Xml.SubElement(categories, "category", shown)
            _add_fill(symbols, str(k), colour)
        return _text(root)

    def gdal_sidecar(self, pixels: Sequence[int] = ()) -> str:
        """The `.aux.xml` of a class map; `pixels` are the counts of its classes, where known."""
        root = Xml.Element("PAMDataset")
        band = Xml.SubElement(root, "PAMRasterBand", {"band": "1"})
        Xml.SubElement(band, "ColorInterp").text = "Palette"
        table = Xml.SubElement(band, "ColorTable")
        for red, green, blue in self.palette:
            Xml.SubElement(table, "Entry", {"c1": str(red), "c2": str(green), "c3": str(blue), "c4": "255"})
        names = Xml.SubElement(band, "CategoryNames")
        for name, _ in self._named():
            Xml.SubElement(names, "Category").text = name
        self._add_attribute_table(band, pixels)
        return _text(root)

    def _add_attribute_table(self, band: Xml.Element, pixels: Sequence[int]) -> None:
        columns = [column for column in _COLUMNS if pixels or column[0] != "Count"]
        table = Xml.SubElement(band, "GDALRasterAttributeTable", {"tableType": "thematic"})
        for k, (title, kind, usage) in enumerate(columns):
            column = Xml.SubElement(table, "FieldDefn", {"index": str(k)})
            for key, text in (("Name", title), ("Type", str(kind)), ("Usage", str(usage))):
                Xml.SubElement(column, key).text = text
        for k, (name, colour) in enumerate(self._named()):
            row = Xml.SubElement(table, "Row", {"index": str(k)})
            for value in (k, name, *([pixels[k]] if pixels else []), *colour):
                Xml.SubElement(row, "F").text = str(value)

    def _named(self) -> list[tuple[str, Colour]]:
        return [(_NOT_IN_XML.sub("?", name), colour) for name, colour in zip(self.classes, self.palette, strict=True)]


def sidecars(target: Path) -> tuple[Path, Path]:
    """Where the style files of a class map are: what GDAL reads, and what QGIS reads."""
    return target.with_name(f"{target.name}.aux.xml"), target.with_suffix(".qml")


def add_style_to_geopackage(path: Path, layer: str, qml: str) -> None:
    """Store a style as the layer's default, in the table QGIS looks for. Its bytes do not depend on the time."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        (geometry,) = database.execute(
            "SELECT column_name FROM gpkg_geometry_columns WHERE table_name = ?", (layer,)
        ).fetchone()
        database.execute(_LAYER_STYLES)
        database.execute(
            "INSERT INTO gpkg_contents (table_name, data_type, identifier, description, last_change, srs_id) "
            "VALUES ('layer_styles', 'attributes', 'layer_styles', '', ?, 0)",
            (_NO_TIME,),
        )
        row = {
            "f_table_catalog": "",
            "f_table_schema": "",
            "f_table_name": layer,
            "f_geometry_column": geometry,
            "styleName": layer,
            "styleQML": qml,
            "styleSLD": "",
            "useAsDefault": 1,
            "description": "the classes of the model",
            "owner": "",
            "update_time": _NO_TIME,
        }
        _insert(database, row)


_NO_TIME = "1970-01-01T00:00:00.000Z"
_LAYER_STYLES = (
    "CREATE TABLE layer_styles (id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, f_table_catalog TEXT(256), "
    "f_table_schema TEXT(256), f_table_name TEXT(256), f_geometry_column TEXT(256), styleName TEXT(30), "
    "styleQML TEXT, styleSLD TEXT, useAsDefault BOOLEAN, description TEXT, owner TEXT(30), ui TEXT(30), "
    "update_time DATETIME)"
)


def _insert(database: sqlite3.Connection, row: Mapping[str, str | int]) -> None:
    marks = ", ".join("?" * len(row))
    database.execute(f"INSERT INTO layer_styles ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def _qgis_document() -> Xml.Element:
    return Xml.Element("qgis", {"version": _QGIS, "styleCategories": "Symbology"})


def _add_fill(symbols: Xml.Element, name: str, colour: Colour) -> None:
    symbol = Xml.SubElement(symbols, "symbol", {"type": "fill", "name": name, "alpha": "1", "clip_to_extent": "1"})
    layer = Xml.SubElement(symbol, "layer", {"class": "SimpleFill", "enabled": "1", "locked": "0", "pass": "0"})
    settings = {
        "color": ",".join(map(str, (*colour, 255))),
        "style": "solid",
        "outline_style": "solid",
        "outline_color": "35,35,35,255",
        "outline_width": "0.1",
        "outline_width_unit": "MM",
    }
    options = Xml.SubElement(layer, "Option", {"type": "Map"})
    for key, value in settings.items():
        Xml.SubElement(options, "Option", {"name": key, "type": "QString", "value": value})
        Xml.SubElement(layer, "prop", {"k": key, "v": value})  # read by versions before 3.26


def _text(root: Xml.Element) -> str:
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode") + "\n"
